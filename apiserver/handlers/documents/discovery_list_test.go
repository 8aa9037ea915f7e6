package documents

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestRegistry_SharesListsBetweenChanges: an added entry does not sort all groups; between
// two changes readers share one list.
func TestRegistry_SharesListsBetweenChanges(t *testing.T) {
	t.Parallel()
	r := NewDiscovery("127.0.0.1:0")
	for i := range 20 {
		if err := r.Add(DiscoveryVersion{GroupVersion: schema.GroupVersion{Group: fmt.Sprintf("g%d", i), Version: "v1"},
			Origin: Custom}); err != nil {
			t.Fatal(err)
		}
		if r.groups != nil {
			t.Fatal("listed although nobody asked")
		}
	}
	first := r.groupList()
	if len(first) != 20 || &first[0] != &r.groupList()[0] {
		t.Errorf("%d groups, or listed twice", len(first))
	}
	r.Remove(schema.GroupVersion{Group: "g7", Version: "v1"}, Custom)
	if _, ok := r.group("g7"); ok || len(r.groupList()) != 19 {
		t.Error("still listed")
	}
}
