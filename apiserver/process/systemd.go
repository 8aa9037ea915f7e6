package process

import (
	"context"
	"strconv"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"k8s.io/klog/v2"
)

// NotifyReady tells systemd that the start is done. status is what "systemctl status" shows.
func NotifyReady(status string) { notify(daemon.SdNotifyReady + "\nSTATUS=" + status) }

// NotifyStopping tells systemd that the server stops. From then on systemd expects no
// watchdog notifications.
func NotifyStopping() { notify(daemon.SdNotifyStopping + "\nSTATUS=Stopping") }

// RunWatchdog notifies systemd that the server is alive, three times in WatchdogSec=,
// as long as isLive returns nil. systemd restarts a server from which it has received
// no notification for WatchdogSec=. The context of isLive ends after a third of that
// time. RunWatchdog returns when ctx ends; from then on systemd expects none. If it never did, it
// returns at once.
func RunWatchdog(ctx context.Context, isLive func(context.Context) error) error {
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		klog.ErrorS(err, "The watchdog of systemd can't be served")
		return nil
	}
	if limit == 0 {
		return nil
	}
	// A standby that takes over has nothing to notify until it serves.
	notify("WATCHDOG_USEC=" + strconv.FormatInt(limit.Microseconds(), 10))
	defer notify("WATCHDOG_USEC=0")
	tick := time.NewTicker(limit / 3)
	defer tick.Stop()
	for {
		check, cancel := context.WithTimeout(ctx, limit/3)
		err := isLive(check)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			klog.ErrorS(err, "The server is not alive; systemd restarts it unless that changes", "watchdog", limit)
		default:
			notify(daemon.SdNotifyWatchdog)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		klog.ErrorS(err, "systemd could not be notified", "state", state)
	}
}
