package managedfields

import (
	"strings"
	"sync"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// parsedSize is about what a parsed set takes, in bytes for each of its JSON.
const parsedSize = 12

// Sets holds the parsed field sets of updated objects, up to about a number of bytes.
// Objects of one kind that were made alike have the same sets. It is safe for concurrent
// use.
type Sets struct {
	mu     sync.Mutex
	parsed generations[setKey, *parsedSet]
}

type setKey struct{ kind, fields string }

// parsedSet is what a manager's fields are when an update begins. Nobody changes it.
type parsedSet struct {
	*fieldpath.Set
	// isStored says that encoding the set gives the JSON that it was parsed from.
	isStored bool
}

// NewSets returns an empty Sets of about limit bytes.
func NewSets(limit int) *Sets { return &Sets{parsed: newGenerations[setKey, *parsedSet](limit)} }

// parse returns the set that fields of an object of a kind are, where live is such an
// object.
func (s *Sets) parse(kind, fields string, live *typed.TypedValue) (*parsedSet, error) {
	key := setKey{kind, fields}
	if parsed := s.get(key); parsed != nil {
		return parsed, nil
	}
	set := &fieldpath.Set{}
	if err := set.FromJSON(strings.NewReader(fields)); err != nil {
		return nil, err
	}
	// Of the live object this looks at the schema alone.
	reconciled, err := typed.ReconcileFieldSetWithSchema(set, live)
	if err != nil {
		return nil, err
	}
	if reconciled != nil {
		set = reconciled
	}
	// The new object has no managed fields when upstream compares, so that the comparison
	// removes them from all sets.
	set = set.Difference(managedFieldsSet)
	encoded, err := set.ToJSON()
	if err != nil {
		return nil, err
	}
	parsed := &parsedSet{set, string(encoded) == fields}
	s.put(key, parsed)
	return parsed, nil
}

var managedFieldsSet = fieldpath.NewSet(fieldpath.MakePathOrDie("metadata", "managedFields"))

func (s *Sets) get(key setKey) *parsedSet {
	s.mu.Lock()
	defer s.mu.Unlock()
	if parsed := s.parsed.recent[key]; parsed != nil {
		return parsed
	}
	parsed := s.parsed.older[key]
	if parsed != nil {
		s.putLocked(key, parsed)
	}
	return parsed
}

func (s *Sets) put(key setKey, parsed *parsedSet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.putLocked(key, parsed)
}

func (s *Sets) putLocked(key setKey, parsed *parsedSet) {
	s.parsed.put(key, parsed, len(key.fields)*parsedSize)
}
