package transfer

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/sqlstore"
	"byre/sqlstore/etcd"
)

// Summary summarizes the objects of etcd or of a database: how many there are of each
// resource, and a hash over them.
type Summary struct {
	// Revision is the last revision of the source.
	Revision  int64
	resources map[owned]*tally
	// LeftOut counts the keys that are not carried over, by the reason.
	LeftOut map[string]int
	// Outside counts the keys that are not below the prefix of Options, by the prefix that they
	// are below.
	Outside map[string]int
	// Encrypted is the number of objects that are carried over in encrypted form.
	Encrypted int
}

type owned struct {
	schema.GroupResource
	owner sqlstore.Owner
}

// tally counts and hashes the objects of one resource. The hash is the sum of the
// objects' hashes, modulo 2^256, so it does not depend on their order.
type tally struct {
	objects int
	sum     [4]uint64
}

func newSummary() *Summary {
	return &Summary{resources: map[owned]*tally{}, LeftOut: map[string]int{}, Outside: map[string]int{}}
}

// add adds an object. kv is the key with the value that a stock server stores for it.
func (s *Summary) add(o *object, kv etcd.KeyValue) {
	if o.isEncrypted {
		s.Encrypted++
	}
	of := owned{schema.GroupResource{Group: o.key.Group, Resource: o.key.Resource}, o.key.Owner}
	t := s.resources[of]
	if t == nil {
		t = &tally{}
		s.resources[of] = t
	}
	t.objects++
	hash := sha256.New()
	fmt.Fprintf(hash, "%q %d %d %t ", kv.Key, kv.Created, kv.Revision, kv.TTL > 0)
	hash.Write(kv.Value)
	t.add(hash.Sum(nil))
}

func (t *tally) add(hash []byte) {
	carry := uint64(0)
	for i := range t.sum {
		t.sum[i], carry = bits.Add64(t.sum[i], binary.LittleEndian.Uint64(hash[i*8:]), carry)
	}
}

// Objects is the number of objects.
func (s *Summary) Objects() int {
	total := 0
	for _, t := range s.resources {
		total += t.objects
	}
	return total
}

// Resources is the number of resources that have objects.
func (s *Summary) Resources() int { return len(s.resources) }

// Hash is one hash over all objects, in hexadecimal.
func (s *Summary) Hash() string {
	hash := sha256.New()
	for _, of := range s.sorted() {
		t := s.resources[of]
		fmt.Fprintf(hash, "%s %s %d %x\n", of.GroupResource, of.owner, t.objects, t.sum)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

func (s *Summary) sorted() []owned {
	return slices.SortedFunc(maps.Keys(s.resources), func(a, b owned) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Resource, b.Resource), cmp.Compare(a.owner, b.owner))
	})
}

// MismatchError says that a copy differs from its source.
type MismatchError struct{ differences []string }

// Error implements error.
func (e *MismatchError) Error() string {
	return "the copy is not what was read: " + strings.Join(e.differences, "; ")
}

// Compare returns a *MismatchError unless copied has the same objects.
func (s *Summary) Compare(copied *Summary) error {
	var differences []string
	all := maps.Clone(s.resources)
	maps.Copy(all, copied.resources)
	for of := range all {
		a, b := s.resources[of], copied.resources[of]
		switch {
		case a == nil:
			differences = append(differences, fmt.Sprintf("%s: %d too many", of.GroupResource, b.objects))
		case b == nil:
			differences = append(differences, fmt.Sprintf("%s: %d are missing", of.GroupResource, a.objects))
		case a.objects != b.objects:
			differences = append(differences, fmt.Sprintf("%s: %d instead of %d", of.GroupResource, b.objects, a.objects))
		case a.sum != b.sum:
			differences = append(differences, fmt.Sprintf("%s: another hash", of.GroupResource))
		}
	}
	if len(differences) == 0 {
		return nil
	}
	slices.Sort(differences)
	return &MismatchError{differences}
}
