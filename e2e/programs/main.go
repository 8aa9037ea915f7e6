package programs

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"
)

// Night skips a test that takes ten seconds or more though a shorter one finds the same fault, or
// that needs an idle machine, unless BYRE_NIGHT is set, as "make night" sets it.
func Night(t testing.TB) {
	t.Helper()
	if os.Getenv("BYRE_NIGHT") == "" {
		t.Skip("runs in make night, or with BYRE_NIGHT=1")
	}
}

// Main is the TestMain of a package whose tests run programs: it builds the programs, runs
// the tests and returns the status to exit with. With E2E_STOCK set the tests run on stock
// servers only, and byre is not built.
func Main(m *testing.M, need ...Program) (status int) {
	if os.Getenv("E2E_STOCK") != "" {
		need = slices.DeleteFunc(need, func(p Program) bool { return p == Byre })
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Minute)
	err := Build(ctx, need...)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
