"""What is deployed: images and their entry points."""
