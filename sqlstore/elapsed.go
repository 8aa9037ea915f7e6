// Package elapsed tells an operator that work still goes on which takes longer than two seconds.
package sqlstore

import "time"

const (
	// ReportAfter is how long work takes before anything is said of it.
	ReportAfter = 2 * time.Second
	// ReportInLog is the time between two lines of a log.
	ReportInLog = 10 * time.Second
)

// ReportElapsed calls report after a time, and then every so often, with the time since Report was
// called, until stop is called. If after is not positive, the first call is made before Report
// returns. The others are made in a goroutine, none of which is left once stop has returned. The
// caller calls stop once.
func ReportElapsed(after, every time.Duration, report func(elapsed time.Duration)) (stop func()) {
	start := time.Now()
	if after <= 0 {
		report(0)
		after = every
	}
	stopped, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		timer := time.NewTimer(after)
		defer timer.Stop()
		for {
			select {
			case <-stopped:
				return
			case <-timer.C:
				report(time.Since(start))
				timer.Reset(every)
			}
		}
	}()
	return func() {
		close(stopped)
		<-ended
	}
}
