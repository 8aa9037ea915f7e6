// Package dropin has tests only. They start byre by the command lines that Kubernetes' own
// tools write for kube-apiserver: the static Pod of kubeadm, whose packages generate it here,
// and that of hack/local-up-cluster.sh, whose function start_apiserver is run as it is in the
// module k8s.io/kubernetes.
package dropin
