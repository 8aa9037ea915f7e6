package transfer

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"byre/sqlstore"
	"byre/sqlstore/etcd"
)

// Source is a key space of etcd at one revision: an etcd.Snapshot or a etcd.KineDatabase.
type Source interface {
	// Revision is the last revision of the key space.
	Revision() int64
	// Len is the number of keys.
	Len() int
	// Each calls yield for each key. Each call yields the same keys in the same order.
	Each(ctx context.Context, yield func(etcd.KeyValue) error) error
}

// Options configure a Translator.
type Options struct {
	// Prefix is the --etcd-prefix of the stock server; empty means DefaultPrefix.
	Prefix string
	// Skip are prefixes of keys of etcd that are left out.
	Skip []string
	// Now is the time from which the remaining lifetimes of leases are counted.
	Now time.Time
	// BumpRevision is added to the source's revision by an import.
	BumpRevision int64
	// Progress is called for each key or row, with the length of its value in bytes;
	// nil means that it is not called.
	Progress func(bytes int)
}

// Translator translates between keys of etcd and rows.
type Translator struct {
	options Options
	table   *table
}

// New makes a Translator.
func New(options Options) (*Translator, error) {
	options.Prefix = cmp.Or(options.Prefix, DefaultPrefix)
	if options.Progress == nil {
		options.Progress = func(int) {}
	}
	table, err := newTable(options.Prefix)
	return &Translator{options, table}, err
}

// maxUnknown is how many keys that belong to no known resource an error names.
const maxUnknown = 5

// Summarize reads all keys of a source, decodes their values and summarizes them. If
// keys belong to no known resource, it returns one error that names the first of them.
func (t *Translator) Summarize(ctx context.Context, source Source) (*Summary, error) {
	summary := newSummary()
	summary.Revision = source.Revision()
	var unknown []string
	more := 0
	last := int64(0)
	err := source.Each(ctx, func(kv etcd.KeyValue) error {
		t.options.Progress(len(kv.Value))
		o, reason, err := t.object(kv)
		var unknownKey *UnknownKeyError
		switch {
		case errors.As(err, &unknownKey):
			if len(unknown) < maxUnknown {
				unknown = append(unknown, unknownKey.Key)
			} else {
				more++
			}
			return nil
		case err != nil:
			return err
		case o == nil:
			summary.LeftOut[reason]++
			if reason == outsidePrefix {
				summary.Outside[t.table.prefixOf(kv.Key)]++
			}
			return nil
		case kv.Revision <= last:
			return fmt.Errorf("%s was written by a transaction that wrote another key too, at revision %d: "+
				"Kubernetes makes none such; update one of the objects, then take another snapshot", kv.Key, kv.Revision)
		}
		last = kv.Revision
		if kv.Value, err = o.stockValue(); err != nil {
			return atKey(kv, err)
		}
		summary.add(o, kv)
		return nil
	})
	if err == nil && len(unknown) > 0 {
		err = unknownKeys(unknown, more)
	}
	return summary, err
}

func unknownKeys(keys []string, more int) error {
	also := ""
	if more > 0 {
		also = fmt.Sprintf(" and %d more", more)
	}
	return fmt.Errorf(
		"of no resource that this version knows: %s%s; leave them out with --skip-prefix, or upgrade the cluster to this version first",
		strings.Join(keys, ", "), also)
}

// object reads a key. If the key is left out, it returns nil and the reason.
func (t *Translator) object(kv etcd.KeyValue) (*object, string, error) {
	for _, prefix := range t.options.Skip {
		if strings.HasPrefix(kv.Key, prefix) {
			return nil, "skipped: " + prefix, nil
		}
	}
	at, reason, err := t.table.find(kv.Key)
	if err != nil || reason != "" {
		return nil, reason, err
	}
	o, err := read(at, kv.Value)
	if err == nil {
		err = t.checkEncrypted(o)
	}
	if err != nil {
		return nil, "", fmt.Errorf("%w; or leave it out with --skip-prefix", atKey(kv, err))
	}
	return o, "", nil
}

func atKey(kv etcd.KeyValue, err error) error {
	return fmt.Errorf("%s at revision %d: %w", kv.Key, kv.Revision, err)
}

// checkEncrypted refuses an encrypted value if its key would change: encryption
// authenticates a value with its key in etcd, so the other side could not decrypt it.
func (t *Translator) checkEncrypted(o *object) error {
	if !o.isEncrypted || t.table.prefix == DefaultPrefix+"/" {
		return nil
	}
	return fmt.Errorf(
		"it is encrypted for a key below %s, and byre's are below %s/: give its resource the provider identity at the source and write it again there, before another try",
		t.table.prefix, DefaultPrefix)
}

// Import returns a snapshot with which a database is loaded. It has the objects of a
// source, no history and a new epoch. The caller has called Summarize before, which
// reports the faults of the source. The snapshot is read as sqlstore.Snapshot says.
func (t *Translator) Import(ctx context.Context, source Source) sqlstore.Snapshot {
	revision := source.Revision() + t.options.BumpRevision
	return sqlstore.Snapshot{
		Header: sqlstore.Header{
			Revision: revision, Compacted: revision, CompleteAfter: revision, Epoch: rand.Text(),
			Time: t.options.Now, ObjectCount: -1,
		},
		Objects: func(yield func(*sqlstore.ObjectRow, error) bool) {
			err := source.Each(ctx, func(kv etcd.KeyValue) error {
				t.options.Progress(len(kv.Value))
				row, err := t.row(kv)
				if err == nil && row != nil && !yield(row, nil) {
					err = errStopped
				}
				return err
			})
			if err != nil && !errors.Is(err, errStopped) {
				yield(nil, err)
			}
		},
		Changes: func(func(*sqlstore.ChangeRow, error) bool) {},
	}
}

// errStopped ends a loop over keys when the reader of the snapshot stops.
var errStopped = errors.New("stopped")

// row returns the row of a key, or nil if the key is left out.
func (t *Translator) row(kv etcd.KeyValue) (*sqlstore.ObjectRow, error) {
	o, _, err := t.object(kv)
	if err != nil || o == nil {
		return nil, err
	}
	// etcd does not record who wrote a key.
	row := &sqlstore.ObjectRow{Time: t.options.Now, Author: sqlstore.Author{User: "byre", Verb: "import"}}
	row.Created, row.Revision = kv.Created, kv.Revision
	if kv.TTL > 0 {
		row.Expires = t.options.Now.Add(kv.TTL)
	}
	return row, o.row(&row.Record)
}

// SummarizeRows summarizes the objects of a database.
func (t *Translator) SummarizeRows(snapshot sqlstore.Snapshot) (*Summary, error) {
	return t.Export(snapshot, func(etcd.KeyValue) error { return nil })
}

// Export calls put with each object of a database in the form in which a stock server
// stores it, and summarizes the objects.
func (t *Translator) Export(snapshot sqlstore.Snapshot, put func(etcd.KeyValue) error) (*Summary, error) {
	summary := newSummary()
	summary.Revision = snapshot.Revision
	for row, err := range snapshot.Objects {
		if err != nil {
			return nil, err
		}
		t.options.Progress(len(row.Value))
		key, resource, reason, err := t.table.key(row.Key)
		if err != nil {
			return nil, err
		}
		if reason != "" {
			summary.LeftOut[reason]++
			continue
		}
		kv := etcd.KeyValue{Key: key, Created: row.Created, Revision: row.Revision}
		o, err := readRow(objectKey{Key: row.Key, resource: resource}, row.Value)
		if err == nil {
			err = t.checkEncrypted(o)
		}
		if err == nil {
			kv.Value, err = o.stockValue()
		}
		if err != nil {
			return nil, atKey(kv, err)
		}
		if !row.Expires.IsZero() {
			// An object that has expired and is not deleted yet keeps living for a
			// second.
			kv.TTL = max(row.Expires.Sub(t.options.Now), time.Second)
		}
		summary.add(o, kv)
		if err := put(kv); err != nil {
			return nil, err
		}
	}
	return summary, nil
}

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
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Resource, b.Resource),
			cmp.Compare(a.owner, b.owner))
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
