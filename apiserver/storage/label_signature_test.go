package storage

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/storage"

	"byre/sqlstore"
)

// TestLabelSignature_PassesOverNothingThatIsSelected compares signatures with upstream's
// selectors.
func TestLabelSignature_PassesOverNothingThatIsSelected(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	const keys, values = 4, 3
	key := func() string { return fmt.Sprintf("k%d", random.IntN(keys)) }
	value := func() string { return []string{"", "v1", "v2"}[random.IntN(values)] }
	passed := 0
	for range 20_000 {
		set := labels.Set{}
		for range random.IntN(keys + 1) {
			set[key()] = value()
		}
		text := ""
		for range 1 + random.IntN(3) {
			k, v, w := key(), value(), value()
			text += "," + []string{
				k + "=" + v, k + "==" + v, k + "!=" + v, k, "!" + k, k + " in (" + v + ")", k + " in (" + v + "," + w + ")",
				k + " notin (" + v + ")", k + ">1", k + "<1",
			}[random.IntN(10)]
		}
		selector, err := labels.Parse(text[1:])
		if err != nil {
			t.Fatal(text, err)
		}
		demanded := demandedLabels(&storage.SelectionPredicate{Label: selector, Field: fields.Everything()})
		a := (&fieldNames{}).compact("", set, nil)
		switch lacks := a.Signature&demanded != demanded; {
		case lacks && selector.Matches(set):
			t.Fatalf("%q selects %v, whose signature lacks a bit", selector, set)
		case lacks:
			passed++
		}
	}
	if passed < 1000 {
		t.Errorf("signatures passed over %d of 20,000 only", passed)
	}
}

// TestList_ByLabelFindsWhatSelectorsSelect: a list by label is the same before and after the
// attributes of its objects are known.
func TestList_ByLabelFindsWhatSelectorsSelect(t *testing.T) {
	t.Parallel()
	f := newFixture(t, backends()[0])
	const n = 300
	for i := range n {
		value := fmt.Sprintf(`{"kind":"Pod","apiVersion":"example.apiserver.k8s.io/v1","metadata":{"name":"p%03d","namespace":"ns","labels":{"app":"a%d","tier":"t%d"}}}`, i, i%20, i%3)
		_, err := f.store.Commit(t.Context(), sqlstore.Write{
			Op: sqlstore.Create, Key: sqlstore.Key{Resource: "pods", Namespace: "ns", Name: fmt.Sprintf("p%03d", i)},
			Value: []byte(value), Encoding: []string{f.cfg.Encoding, "another"}[i%2],
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	list := func(text string) (names []string) {
		selector, err := labels.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		page, err := f.lister.page(t.Context(), "/pods", storage.ListOptions{Recursive: true, Predicate: storage.SelectionPredicate{
			Label: selector, Field: fields.Everything(), GetAttrs: podAttrs,
		}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for e, err := range page.items {
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, e.Name)
		}
		return names
	}
	for text, want := range map[string]int{"app=a7": 15, "app=a7,tier=t1": 5, "app=none": 0, "app!=a7": 285, "app in (a7,a8)": 30, "none": 0, "app": n} {
		f.forget()
		cold := list(text)
		warm := list(text)
		if len(cold) != want || !slices.Equal(cold, warm) {
			t.Errorf("%q lists %d objects cold and %d warm, want %d", text, len(cold), len(warm), want)
		}
	}
}
