package sqlite

import (
	"slices"
	"testing"
)

// TestSettings_SyncUnlessTheDatabaseIsForATest: a database is synced at each COMMIT, unless it is opened without.
func TestSettings_SyncUnlessTheDatabaseIsForATest(t *testing.T) {
	for unsynced, want := range map[bool]string{false: "2", true: "0"} {
		settings := (&file{unsynced: unsynced}).settings()
		if !slices.Contains(settings, setting{name: "synchronous", value: want}) {
			t.Errorf("unsynced is %t: %v", unsynced, settings)
		}
	}
}
