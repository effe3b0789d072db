//! Tortie: a network-policy agent that enforces Kubernetes and Calico policy on Linux.
