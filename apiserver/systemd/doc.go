// Package systemd tells systemd, by the protocol of sd_notify(3), what the server does:
// that it is ready, that it stops, and, for WatchdogSec= of a unit, that it is alive.
//
// kube-apiserver sends READY=1 once its post-start hooks have been started. Here READY=1
// follows /readyz, so that the units that are ordered after this one find a server that works.
//
// Without the variables NOTIFY_SOCKET and WATCHDOG_USEC nothing is sent. A message that
// can't be sent is logged: the server keeps running.
package systemd
