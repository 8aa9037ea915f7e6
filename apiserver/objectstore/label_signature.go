package objectstore

import (
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/storage"

	"byre/sqlstore"
	"byre/watch"
)

// A list by label passes over most entries by one word for each.
//
// What upstream does: it compares the selector with the labels of each object.
//
// What is done instead: the attributes of an object have a Bloom filter of its labels, 64 bits
// of which each label sets two. An entry that lacks a bit of a label that the selector demands is
// passed over. All others are compared with the selector.
//
// What it relies on: a selector selects nothing that does not have each of its requirements,
// and a requirement with one value (=, ==, in) demands the label with this value.
// TestLabelSignature_PassesOverNothingThatIsSelected fails when that changes.
//
// What it earns: a list of 200 of 100,000 Pods by label takes 10 ms of processor time and 28
// without, of which what the test's database does meanwhile takes 6 (BenchmarkListByLabel). To find
// a label takes four or five reads of memory that no cache of the processor holds; the signature
// takes two.

// labelSignature is a Bloom filter of labels.
type labelSignature = uint64

// signatureOf returns the signature of labels.
func signatureOf(labels labelSet) (signature labelSignature) {
	for _, l := range labels {
		signature |= labelBits(l.Key, l.Value)
	}
	return signature
}

// labelBits returns the bits that one label sets: FNV-1a of the key, a zero, and the value.
func labelBits(key, value string) labelSignature {
	const offset, prime = 14695981039346656037, 1099511628211
	hash := uint64(offset)
	for i := range len(key) {
		hash = (hash ^ uint64(key[i])) * prime
	}
	hash *= prime
	for i := range len(value) {
		hash = (hash ^ uint64(value[i])) * prime
	}
	hash ^= hash >> 32
	return 1<<(hash&63) | 1<<(hash>>6&63)
}

// demandedLabels returns the signature that every object has which the predicate selects. It is
// zero where the selector demands no value of a label, and where more than labels is asked for:
// the other parts of a predicate may find an object that can't be read.
func demandedLabels(p *storage.SelectionPredicate) (demanded labelSignature) {
	if p.Label == nil || p.Field != nil && !p.Field.Empty() || p.ShardSelector != nil && !p.ShardSelector.Empty() {
		return 0
	}
	requirements, _ := p.Label.Requirements()
	for i := range requirements {
		switch requirements[i].Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			if values := requirements[i].ValuesUnsorted(); len(values) == 1 {
				demanded |= labelBits(requirements[i].Key(), values[0])
			}
		}
	}
	return demanded
}

// mayHave returns false if the entry certainly lacks a label of a signature.
func (s *Store) mayHave(e *watch.Entry, demanded labelSignature) bool {
	if demanded == 0 {
		return true
	}
	a := s.knownAttributes(e)
	return a == nil || a.Signature&demanded == demanded
}

// newAttributes makes attributes with the signature of their labels.
func newAttributes(view string, labels labelSet) *sqlstore.Attributes {
	return &sqlstore.Attributes{View: view, Labels: labels, Signature: signatureOf(labels)}
}
