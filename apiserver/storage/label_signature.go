package storage

import (
	"hash/maphash"

	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/storage"

	"byre/sqlstore"
	"byre/watch"
)

// A list by label skips most entries after it has read one word of each.
//
// What upstream does: it compares the selector with the labels of each object.
//
// What is done instead: the attributes of an object have a Bloom filter of its labels. It has
// 64 bits, of which each label sets two. An entry that lacks a bit of a label that the
// selector demands is skipped. All others are compared with the selector.
//
// What it relies on: a selector selects only objects that meet each of its requirements, and
// a requirement with one value (=, ==, in) demands the label with this value.
// TestLabelSignature_PassesOverNothingThatIsSelected fails when that changes.
//
// What it earns: a list of 200 of 100,000 Pods by label takes 10 ms of processor time, and 28
// without signatures. 6 of these are the work of the test's database in the meantime
// (BenchmarkListByLabel). Finding a label takes four or five reads of memory that is in no
// cache of the processor; reading the signature takes two.

// labelSignature is a Bloom filter of labels.
type labelSignature = uint64

// signatureOf returns the signature of labels.
func signatureOf(labels labelSet) (signature labelSignature) {
	for _, l := range labels {
		signature |= labelBits(l.Key, l.Value)
	}
	return signature
}

// labelSeed makes the bits of this process. No other process and no database sees them.
var labelSeed = maphash.MakeSeed()

// labelBits returns the bits that one label sets.
func labelBits(key, value string) labelSignature {
	hash := maphash.Comparable(labelSeed, sqlstore.Label{Key: key, Value: value})
	return 1<<(hash&63) | 1<<(hash>>6&63)
}

// demandedLabels returns the bits that are in the signature of every object that the
// predicate selects. It returns zero if the selector demands no value of a label. It also
// returns zero if the predicate has more than a label selector: the other parts must see every
// entry, because they return an error for one that can't be read.
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

// mayHave reports whether the entry may have all labels of a signature. It returns false only
// if the entry certainly lacks one.
func (s *selector) mayHave(e *watch.Entry, demanded labelSignature) bool {
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
