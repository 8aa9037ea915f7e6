// Package systemd notifies systemd, by the protocol of sd_notify(3): that the server is
// ready, that it stops, and, if the unit has WatchdogSec=, that it is alive. Without the variables
// NOTIFY_SOCKET and WATCHDOG_USEC nothing is sent. A message that can't be sent is logged.
//
// kube-apiserver sends READY=1 once its post-start hooks have been started. Here it is sent when all
// checks of /readyz pass but those of writes, so that units that are ordered after this one find a
// server that works, and "systemctl restart" ends on a full disk too.
package process
