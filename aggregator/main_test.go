package aggregator_test

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain checks that no goroutine outlives the servers of the tests.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
