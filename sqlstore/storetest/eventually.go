package storetest

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// interval is the time between two attempts.
	interval = 5 * time.Millisecond
	// timeout bounds a wait in the test's own process. It is long, so that tests pass on a
	// busy machine; only a test that fails waits for so long.
	timeout = time.Minute

	// Patience bounds a wait for another program, or for a cluster of programs.
	Patience = 5 * time.Minute
	// programInterval is the time between two attempts that ask another program.
	programInterval = 100 * time.Millisecond
)

// Eventually calls condition until it returns true. After a minute, or when the test's context
// ends, it fails the test with t.Fatalf; what names the condition in the message. It must
// be called from the test's own goroutine.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	EventuallyDone(t, what, func(context.Context) (bool, error) { return condition(), nil })
}

// EventuallyDone calls condition until it returns true and no error, under the same rules as True. It
// calls condition again after an error, and reports the last error if the time is over. The
// context of condition ends when Done returns.
func EventuallyDone(t testing.TB, what string, condition wait.ConditionWithContextFunc) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), interval, timeout, true, func(ctx context.Context) (bool, error) {
		done, err := condition(ctx)
		if ctx.Err() == nil {
			last = err
		}
		return done && err == nil, nil
	})
	if err != nil {
		t.Fatalf("%s: not within %v: %v (last error: %v)", what, timeout, err, last)
	}
}

// EventuallySucceeds calls try until it returns nil. After Patience, or when the test's context ends,
// it fails the test with the last error. Like True, it must be called from the test's own
// goroutine.
func EventuallySucceeds(t testing.TB, what string, try func() error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), programInterval, Patience, true, func(context.Context) (bool, error) {
		last = try()
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("%s: not within %v: %v (last error: %v)", what, Patience, err, last)
	}
}
