package history

import (
	"fmt"
	"strings"
	"testing"
)

// Two versions of many lines are compared as a whole: line by line it would take minutes, which nothing ends.
func TestDiff_OfManyLines(t *testing.T) {
	t.Parallel()
	var before, after strings.Builder
	for i := range 40_000 {
		fmt.Fprintf(&before, "%x\n%xb\n", i, i)
		fmt.Fprintf(&after, "%x\n%xa\n", i, i)
	}
	of := func(data string) map[string]any {
		return map[string]any{"data": map[string]any{"a": data, "b": "same"}}
	}
	for _, c := range []struct {
		before, after string
		lines         int
		first, last   string
	}{
		{before.String(), after.String(), 1 + 2*79_999, "@@ -4,79999 +4,79999 @@\n", "+    9c3fa\n"},
		{before.String(), before.String() + "x\n", 2, "@@ -80003,0 +80003,1 @@\n", "+    x\n"},
		{before.String(), before.String(), 0, "", ""},
	} {
		for _, names := range []struct {
			before, after, want string
		}{{"", "", ""}, {"a", "b", "--- a\n+++ b\n"}} {
			text, err := Diff(of(c.before), of(c.after), names.before, names.after)
			if c.lines == 0 && (text != "" || err != nil) {
				t.Errorf("%q, %v", text, err)
			}
			diff, isNamed := strings.CutPrefix(text, names.want)
			if lines := strings.Count(diff, "\n"); err != nil || c.lines > 0 && !isNamed || lines != c.lines ||
				!strings.HasPrefix(diff, c.first) || !strings.HasSuffix(diff, c.last) {
				t.Errorf("%d lines, %v", lines, err)
			}
		}
	}
}

// The lines of a version that does not exist are none, and neither is there an empty one at the end.
func TestDiff_OfWhatIsMade(t *testing.T) {
	t.Parallel()
	of := func(count int64) map[string]any {
		return map[string]any{"kind": "ConfigMap", "data": map[string]any{"count": count}}
	}
	object, changed := of(1<<60), of(1)
	const number = "1152921504606846976"
	for want, versions := range map[string][2]map[string]any{
		"@@ -0,0 +1,3 @@\n+data:\n+  count: " + number + "\n+kind: ConfigMap\n":              {nil, object},
		"@@ -1,3 +0,0 @@\n-data:\n-  count: " + number + "\n-kind: ConfigMap\n":              {object, nil},
		"@@ -1,3 +1,3 @@\n data:\n-  count: " + number + "\n+  count: 1\n kind: ConfigMap\n": {object, changed},
	} {
		if got, err := Diff(versions[0], versions[1], "", ""); got != want || err != nil {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
}
