package aggregator_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain checks that no goroutine outlives the servers of the tests. They run with a proxy in the environment, which
// nobody reaches, and which is for all requests but those to backends.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"HTTPS_PROXY": "http://192.0.2.1:1", "NO_PROXY": namespace + ".svc"} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}
