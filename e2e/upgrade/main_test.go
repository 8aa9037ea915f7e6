package upgrade

import (
	"flag"
	"os"
	"testing"

	"byre/e2e/programs"
)

var isLongUpgrade = flag.Bool("upgrade", false, "upgrade from each older program, and fail without its source")

func TestMain(m *testing.M) { os.Exit(programs.Main(m, programs.Byre)) }
