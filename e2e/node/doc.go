// Package node tests that a real node joins byre and runs Pods: containerd and runc of the
// system, and upstream's kubelet, built from its module. "make node-test" runs the test, as
// root.
//
// The node joins by the commands of docs/operations/one-host.md, "An edge node", typed as they stand there.
//
// The test starts itself again in a network, a mount and a process namespace of its own, and
// byre, containerd and the kubelet in these. It does not change the machine's network, /var/lib
// and /run, and all processes end with the test. It builds its image from the machine's static
// busybox. The kubelet makes no cgroups (cgroupsPerQOS is off); containers have cgroups of their
// own while they run.
//
// Where the machine cannot run containers the test says so, and upstream's hollow kubelets
// (kubemark) join instead; "make node-test HOLLOW=1" runs them on any machine, and without root.
package node
