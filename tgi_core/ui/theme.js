// Runs before the page is drawn, so that a chosen appearance does not flash. Not a module: modules run later.
(() => {
  const chosen = localStorage.getItem("tgi-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
