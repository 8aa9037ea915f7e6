package managedfields

import (
	"strings"
	"sync"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// parsedSize is about how many bytes a parsed set takes for each byte of its JSON.
const parsedSize = 12

// Sets caches the parsed field sets of updated objects, in about a number of bytes.
// Objects of one kind that were made in the same way have the same sets. It is safe for
// concurrent use.
type Sets struct {
	mu     sync.Mutex
	parsed generations[setKey, *parsedSet]
}

type setKey struct{ kind, fields string }

// parsedSet is the field set of a manager before an update. It is immutable.
type parsedSet struct {
	*fieldpath.Set
	// isStored is true if encoding the set gives the JSON that it was parsed from.
	isStored bool
}

// NewSets returns an empty Sets of about limit bytes.
func NewSets(limit int) *Sets { return &Sets{parsed: newGenerations[setKey, *parsedSet](limit)} }

// parse returns the set that fields, in JSON, is for objects of a kind. live is an
// object of the kind.
func (s *Sets) parse(kind, fields string, live *typed.TypedValue) (*parsedSet, error) {
	key := setKey{kind, fields}
	if parsed := s.get(key); parsed != nil {
		return parsed, nil
	}
	set := &fieldpath.Set{}
	if err := set.FromJSON(strings.NewReader(fields)); err != nil {
		return nil, err
	}
	// ReconcileFieldSetWithSchema reads only the schema of live.
	reconciled, err := typed.ReconcileFieldSetWithSchema(set, live)
	if err != nil {
		return nil, err
	}
	if reconciled != nil {
		set = reconciled
	}
	// Upstream compares the live object with a new object that has no managed fields,
	// so the comparison removes them from all sets.
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
