"""What the Helm chart and the Kubernetes manifests are made from: the devices and the table of settings."""
