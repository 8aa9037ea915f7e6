// Package programs builds the programs that the end-to-end tests and the
// benchmark run: byre itself, kubectl, kube-apiserver, kube-controller-manager,
// kube-scheduler, the sample API server, etcd and etcdutl at the versions that go.mod pins,
// and kubelet, kubemark, kwok, kine, helm, Litestream, versitygw, Ginkgo, etcd 3.5 and etcd 3.6 at those of
// the modules beneath.
//
// Everything is built by the go command, from modules; a second build of the
// same source costs about a second.
package programs
