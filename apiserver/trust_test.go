package apiserver

import (
	"strings"
	"testing"

	"byre/sqlstore/storetest"
)

// A server starts when it accepts what the one before it issued, and the other way
// round; so keys can be rotated in steps.
func TestTrust(t *testing.T) {
	keys := func(names string) []string { return strings.Fields(names) }
	driver := storetest.NewModel()
	for _, step := range []struct {
		what    string
		own     trust
		accept  bool
		refused string
	}{
		{"the first start", trust{keys("ca"), keys("a"), "a"}, false, ""},
		{"the second", trust{keys("ca"), keys("a"), "a"}, false, ""},
		{"another CA", trust{keys("other"), keys("a"), "a"}, false, "the CA has the key other, the CA that the database was served with has ca"},
		{"another service account key", trust{keys("ca"), keys("b"), "b"}, false, "would be signed by b"},
		{"a new key that nobody else verifies yet", trust{keys("ca"), keys("a b"), "b"}, false, "would be signed by b"},
		{"a new key that verifies", trust{keys("ca"), keys("a b"), "a"}, false, ""},
		{"a new key that signs", trust{keys("ca"), keys("a b"), "b"}, false, ""},
		{"a replica that is late", trust{keys("ca"), keys("a"), "a"}, false, "signed by b"},
		{"without the old key", trust{keys("ca"), keys("b"), "b"}, false, ""},
		{"a CA that is added", trust{keys("ca2 ca"), keys("b"), "b"}, false, ""},
		{"a CA that is dropped", trust{keys("ca2"), keys("b"), "b"}, false, ""},
		{"the dropped CA", trust{keys("ca"), keys("b"), "b"}, false, "the CA has the key"},
		{"new keys on purpose", trust{keys("new"), keys("n"), "n"}, true, ""},
		{"the old ones", trust{keys("ca2"), keys("b"), "b"}, false, "the CA has the key"},
		{"the new ones again", trust{keys("new"), keys("n"), "n"}, false, ""},
	} {
		err := ensureTrust(t.Context(), driver, step.own, "pki", step.accept)
		if step.refused == "" && err != nil {
			t.Errorf("%s: %v", step.what, err)
		}
		if step.refused != "" && (err == nil || !strings.Contains(err.Error(), step.refused) || !strings.Contains(err.Error(), "--accept-new-keys")) {
			t.Errorf("%s: %v, want %q", step.what, err, step.refused)
		}
	}
}
