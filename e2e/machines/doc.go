// Package machines tests two machines with SQLite and a bucket, as docs/operations/two-machines.md sets them up:
// each in a network namespace with its own disk, byre, and keepalived, which moves an address by /readyz.
// Clients, kubectl and kwok's nodes use that address, while the cable of the machine that serves is pulled in the
// middle of a rollout. "make machines-test" runs the test, as root.
//
// The test starts itself again in a network, a mount and a process namespace of its own. It does not change
// the machine's network and /run, and all processes end with the test.
package machines
