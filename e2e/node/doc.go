// Package node has a real node join byre and run Pods: containerd and runc of the system,
// and upstream's kubelet, built from its module. "make node-test" runs it, as root.
//
// The test runs itself again in a network, a mount and a process namespace of its own, with
// byre, containerd and the kubelet in them: the machine's network, /var/lib and /run stay as
// they are, and everything ends with the test. Images are made on the spot from a static
// busybox. The kubelet leaves the machine's cgroups alone (cgroupsPerQOS is off), containers
// have cgroups of their own while they run.
package node
