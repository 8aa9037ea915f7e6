// Package timerslack runs a server with a timer slack of a millisecond: the kernel may wake a
// thread that much later than it asked for.
//
// What upstream does: nothing. While any goroutine runs, a thread of the runtime (sysmon) sleeps for 20 µs
// again and again, and a thread that looks for work sleeps for 3 µs before it takes work from
// another. Linux adds a slack of 50 µs to each sleep by default. A server under a light load
// wakes a thousand times a second for that, and on a virtual machine the hypervisor takes part
// in each of these wakes.
//
// What is done instead: the server has a slack of a millisecond, which is the resolution of
// the runtime's own timers.
//
// What it relies on: a thread has the slack of the thread that starts it, and sysmon starts
// before the first line of the program. But the slack outlives the execution of a program
// (PR_SET_TIMERSLACK(2const)), and so the program executes itself again
// (TestRaise_SetsTheSlackOfAllThreads). Package early does that before most of the program is
// initialized. Whoever starts it with that slack, as the systemd unit does, has one execution.
//
// What it earns: 12 to 15 percent of a server's processor time under the cluster of make soak
// (docs/decisions/0019-timer-slack.md). BenchmarkRaise has a program that does little.
package timerslack
