package aggregator_test

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain: nothing goes on after the servers of the tests have stopped.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
