package controlplane

import (
	"errors"
	"flag"
	"os"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"byre/e2e/programs"
)

var (
	rolloutPods = flag.Int("pods", 20, "how many Pods the Deployment has that is rolled out while servers are killed")
	kills       = flag.Int("kills", 1, "how often each server is killed")
	inProcess   = flag.Bool("in-process", false,
		"run the scheduler and the controllers in byre's processes instead of beside them")
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(programs.Main(m, programs.Byre, programs.Kubectl, programs.ControllerManager, programs.Scheduler,
		programs.Kwok))
}

// checkNotFound returns nil if err, the error of a read, says that the object does not exist,
// and otherwise an error.
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
