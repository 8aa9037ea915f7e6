package crd_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// gatesVariable names the environment variable with the feature gates of a test process.
const gatesVariable = "CRD_TEST_FEATURE_GATES"

func TestMain(m *testing.M) {
	if err := utilfeature.DefaultMutableFeatureGate.Set(os.Getenv(gatesVariable)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(m.Run())
}

// TestAllFeatureGates_On runs the tests that may depend on feature gates with all of them
// on. Feature gates are process-wide, so the tests run in a process of their own.
func TestAllFeatureGates_On(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs many tests again")
	}
	if os.Getenv(gatesVariable) != "" {
		t.Skip("this is that process")
	}
	tests := []string{
		"TestInstance_FieldSelectorsAndWatches", "TestInstance_Tables", "TestInstance_Apply", "TestInstance_ReadFollows",
		"TestInstance_Invalid", "TestVersions_", "TestFinalizer_Watches", "TestStorageVersion_Watches",
		"TestUnreadable_",
	}
	test := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run=^("+strings.Join(tests, "|")+")/^(sqlite)?$")
	test.Env = append(os.Environ(), gatesVariable+"=AllAlpha=true,AllBeta=true")
	out, err := test.CombinedOutput()
	if err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
	for _, name := range tests {
		if !strings.Contains(string(out), "--- PASS: "+name) {
			t.Errorf("no test %s passed", name)
		}
	}
}
