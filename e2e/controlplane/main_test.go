package controlplane

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"byre/e2e/programs"
)

var (
	rolloutPods = flag.Int("pods", 20, "how many Pods the Deployment has that is rolled out while servers are killed")
	kills       = flag.Int("kills", 1, "how often each server is killed")
)

func TestMain(m *testing.M) {
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	defer cancel()
	err := programs.Build(ctx, programs.Byre, programs.Kubectl, programs.ControllerManager, programs.Scheduler, programs.Kwok)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// patience bounds waits for what is sure to happen. It only ends a test that would
// fail anyway, and a loaded machine is slow.
const patience = 5 * time.Minute

// checkNotFound takes the error of a read, which must say that the object is gone.
func checkNotFound(err error) error {
	switch {
	case err == nil:
		return errors.New("it is still there")
	case apierrors.IsNotFound(err):
		return nil
	default:
		return err
	}
}

// waitFor calls try until it returns nil.
func waitFor(t *testing.T, what string, try func() error) {
	t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(patience)
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("%s: not within %v: %v", what, patience, err)
		}
	}
}
