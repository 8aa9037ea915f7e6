package status_test

import (
	"fmt"
	"iter"
	"strings"
	"testing"

	"byre/cmd/byre/status"
	"byre/sqlstore"
)

func rows[T any](all []*T) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		for _, row := range all {
			if !yield(row, nil) {
				return
			}
		}
	}
}

func pod(name, uid string) (sqlstore.Key, []byte) {
	return sqlstore.Key{Resource: "pods", Namespace: "n", Name: name},
		fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":"n","uid":%q}}`, name, uid)
}

// sound is a store at revision 6, compacted up to 2: "a" was made at 1 and updated at 3, "b"
// was made at 4, updated at 5, and deleted at 6.
func sound() (sqlstore.Header, []*sqlstore.ObjectRow, []*sqlstore.ChangeRow) {
	a, aValue := pod("a", "ua")
	b, bValue := pod("b", "ub")
	return sqlstore.Header{Revision: 6, Compacted: 2, CompleteAfter: 2},
		[]*sqlstore.ObjectRow{{Record: sqlstore.Record{Key: a, UID: "ua", Created: 1, Revision: 3, Value: aValue}}},
		[]*sqlstore.ChangeRow{
			{Key: a, Op: sqlstore.Update, Revision: 3, Replaces: 1, Created: 1, UID: "ua", Value: aValue},
			{Key: b, Op: sqlstore.Create, Revision: 4, Created: 4, UID: "ub"},
			{Key: b, Op: sqlstore.Update, Revision: 5, Replaces: 4, Created: 4, UID: "ub", Value: bValue},
			{Key: b, Op: sqlstore.Delete, Revision: 6, Replaces: 5, Created: 4, UID: "ub", Value: bValue},
		}
}

// Each broken row has its finding; a store without broken rows has none.
func TestCheck_ReportsEachBrokenRow(t *testing.T) {
	t.Parallel()
	type store struct {
		*sqlstore.Header
		objects []*sqlstore.ObjectRow
		changes []*sqlstore.ChangeRow
	}
	for name, test := range map[string]struct {
		breakIt func(*store)
		want    string
	}{
		"nothing":       {func(*store) {}, ""},
		"encrypted":     {func(s *store) { s.objects[0].Value = []byte(`"k8s:enc:aescbc:v1:key1:AAAA"`) }, ""},
		"text":          {func(s *store) { s.objects[0].Value = []byte(`"text"`) }, "a text that no encryption has written"},
		"not JSON":      {func(s *store) { s.objects[0].Value = []byte(`{`) }, "not JSON"},
		"another name":  {func(s *store) { _, s.objects[0].Value = pod("x", "ua") }, `that of "x"`},
		"another uid":   {func(s *store) { _, s.changes[2].Value = pod("b", "x") }, `has the uid "x"`},
		"another group": {func(s *store) { s.objects[0].Group = "apps" }, `of the API group ""`},
		"future object": {func(s *store) { s.objects[0].Revision = 9 }, "while the last revision is 6"},
		"same revision": {func(s *store) { s.objects = append(s.objects, s.objects[0]) }, "stands twice"},
		"missing first": {func(s *store) { s.changes = s.changes[1:] }, "revisions 3 to 3 are missing"},
		"missing middle": {func(s *store) {
			s.changes = append(s.changes[:1], s.changes[2:]...)
		}, "revisions 4 to 4 are missing"},
		"missing last": {func(s *store) { s.changes = s.changes[:3] }, "revisions 6 to 6 are missing"},
		"missing of one resource": {func(s *store) {
			s.Compacted, s.CompleteAfter = 5, 5
			s.Retained = map[sqlstore.Resource]sqlstore.Retained{s.changes[0].Of(): {ResumableAfter: 2, CompleteAfter: 2}}
			s.changes = s.changes[2:]
		}, "revision 4, whose change is missing"},
		"missing of one object": {func(s *store) {
			s.Compacted, s.CompleteAfter = 5, 5
			s.Retained = map[sqlstore.Resource]sqlstore.Retained{s.changes[0].Of(): {ResumableAfter: 2, CompleteAfter: 2}}
			s.changes = s.changes[1:]
		}, "has no change, though the history reaches back before it"},
		"missing object": {func(s *store) { s.objects = nil }, "which is not there"},
		"undead object": {func(s *store) {
			s.objects = append(s.objects, bObject())
		}, "it deleted, but which is there"},
		"wrong predecessor": {func(s *store) { s.changes[3].Replaces = 4 }, "the change before is 5"},
		"created twice": {func(s *store) {
			s.changes[2].Op, s.changes[2].Replaces, s.changes[2].Created = sqlstore.Create, 0, 5
		}, "creates what revision 4 left there"},
		"value lost":          {func(s *store) { s.changes[2].Value = nil }, "lacks the value"},
		"object left behind":  {func(s *store) { s.objects[0].Revision = 1 }, "an object that is at revision 1"},
		"beyond the last one": {func(s *store) { s.Revision = 5 }, "beyond the last revision"},
	} {
		header, objects, changes := sound()
		s := &store{&header, objects, changes}
		test.breakIt(s)
		result, err := status.Check(sqlstore.Snapshot{Header: header, Objects: rows(s.objects), Changes: rows(s.changes)},
			nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		text := fmt.Sprint(result.Findings)
		if (test.want == "") != (len(result.Findings) == 0) || !strings.Contains(text, test.want) {
			t.Errorf("%s: found %s, want %q", name, text, test.want)
		}
	}
}

func bObject() *sqlstore.ObjectRow {
	b, value := pod("b", "ub")
	return &sqlstore.ObjectRow{Record: sqlstore.Record{Key: b, UID: "ub", Created: 4, Revision: 5, Value: value}}
}

// Custom resources that no definition, or none with their version, lets anybody read are
// findings.
func TestCheck_CustomResources(t *testing.T) {
	t.Parallel()
	row := func(key sqlstore.Key, revision int64, value string) *sqlstore.ObjectRow {
		return &sqlstore.ObjectRow{Record: sqlstore.Record{Key: key, Created: revision, Revision: revision,
			Value: []byte(value)}}
	}
	widget := sqlstore.Key{Group: "g", Resource: "widgets", Owner: sqlstore.Custom, Name: "w"}
	value := `{"apiVersion":"g/v1","kind":"Widget","metadata":{"name":"w"}}`
	definition := sqlstore.Key{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions", Name: "widgets.g"}
	define := func(version string) *sqlstore.ObjectRow {
		return row(definition, 2,
			`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.g"},"spec":{"group":"g","versions":[{"name":"`+version+`"}]}}`)
	}
	for want, objects := range map[string][]*sqlstore.ObjectRow{
		"":                   {define("v1"), row(widget, 1, value)},
		"have no definition": {row(widget, 1, value)},
		`of version "g/v1", which their definition lacks`: {define("v2"), row(widget, 1, value)},
	} {
		result, err := status.Check(sqlstore.Snapshot{
			Header: sqlstore.Header{Revision: 2, Compacted: 2, CompleteAfter: 2}, Objects: rows(objects),
			Changes: rows([]*sqlstore.ChangeRow{}),
		}, nil)
		if text := fmt.Sprint(result.Findings); err != nil || (want == "") != (len(result.Findings) == 0) ||
			!strings.Contains(text, want) {
			t.Errorf("want %q: %v %s", want, err, text)
		}
	}
}

// A row that can't be read is one finding, and the check goes on after it. The rows that depend on
// it are not taken for wrong.
func TestCheck_GoesOnAfterDamagedRows(t *testing.T) {
	t.Parallel()
	header, _, changes := sound()
	a, _ := pod("a", "ua")
	b, _ := pod("b", "ub")
	damaged := func(k sqlstore.Key, reason string) *sqlstore.DamagedRow {
		return &sqlstore.DamagedRow{Finding: sqlstore.Finding{Row: k.Display(), Reason: reason}, Key: k,
			Revision: changes[2].Revision}
	}
	result, err := status.Check(sqlstore.Snapshot{
		Header:  header,
		Objects: func(yield func(*sqlstore.ObjectRow, error) bool) { yield(nil, damaged(a, "object")) },
		Changes: func(yield func(*sqlstore.ChangeRow, error) bool) {
			_ = yield(changes[0], nil) && yield(changes[1], nil) && yield(nil, damaged(b, "change")) && yield(changes[3], nil)
		},
	}, nil)
	want := "[pods n/a: object pods n/b: change]"
	if got := fmt.Sprint(result.Findings); err != nil || got != want || result.FindingCount != 2 || result.Changes != 3 ||
		!result.Damaged || result.MissingUpTo != 0 {
		t.Errorf("%v %v, want %v", got, err, want)
	}
}
