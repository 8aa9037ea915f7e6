package sqlstore

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Owner says who defines a resource. It is part of every key, so that a custom
// resource with the group and the plural of a built-in one shares no row with
// it, as in etcd.
type Owner uint8

const (
	// BuiltIn resources are the program's own; the zero value.
	BuiltIn Owner = iota
	// Custom resources are those that a CustomResourceDefinition defines.
	Custom
)

var ownerNames = [...]string{BuiltIn: "builtin", Custom: "custom"}

// String is the owner as the columns named owner hold it.
func (o Owner) String() string { return ownerNames[o] }

// Scan implements sql.Scanner.
func (o *Owner) Scan(column any) error {
	for i, name := range ownerNames {
		if column == name {
			*o = Owner(i)
			return nil
		}
	}
	return fmt.Errorf("owner in the database is %v", column)
}

// Key names one object. Namespace is empty for what lives in no namespace.
// Keys order as (Group, Resource, Owner, Namespace, Name), each compared as
// bytes, in both databases.
type Key struct {
	Group     string
	Resource  string
	Owner     Owner
	Namespace string
	Name      string
}

// Compare orders keys.
func (k Key) Compare(other Key) int {
	return cmp.Or(
		strings.Compare(k.Group, other.Group), strings.Compare(k.Resource, other.Resource),
		// The columns hold names, which order as the numbers do.
		cmp.Compare(k.Owner, other.Owner),
		strings.Compare(k.Namespace, other.Namespace), strings.Compare(k.Name, other.Name),
	)
}

// Record is one object as it is stored at one revision. It is immutable.
type Record struct {
	Key
	// UID is metadata.uid, as given by the writer; it may be empty.
	UID string
	// Created is the revision that created the object; Revision the one that
	// wrote this state of it. 0 < Created <= Revision.
	Created  int64
	Revision int64
	// Form says by which encoding Value was written (program, storage version,
	// schema). The store only keeps it: a reader that finds the Form it would
	// write itself may answer with Value as it is.
	Form string
	// Expires is when the record is deleted by itself; zero means never.
	Expires time.Time
	// Value is a JSON text. Shared: never write to it.
	Value []byte
}

// Op says what a change does to its key.
type Op string

// The values of the column changes.op.
const (
	Create Op = "create"
	Update Op = "update"
	Delete Op = "delete"
)

// Author says who asked for a change; the store keeps it beside the change.
type Author struct {
	// User is the authenticated user's name, or the program's own name.
	User string
	// Verb is the verb of the request: create, update, patch, apply, delete,
	// deletecollection, or expire for what the store deleted by itself.
	Verb string
	// AuditID is the request's audit ID; it may be empty.
	AuditID string
}

// Write is one change that is asked for.
type Write struct {
	Op  Op
	Key Key
	// Replaces is the precondition: the revision that the key must be at.
	// Create demands 0 (no such object); Update and Delete demand > 0.
	Replaces int64
	// UID, Form and Value are of the new state; unused by Delete.
	UID   string
	Form  string
	Value []byte
	// Expires is the absolute expiry of the new state; zero means never.
	Expires time.Time
	Author  Author
	// Grows says that the Value of an Update makes the database larger. Such an Update
	// fails with ErrQuota when there is no space left, as every Create does.
	Grows bool
	// Attributes are those of the new state, if the writer knows them. They are handed
	// on in the Change that Publish gets, and are not stored.
	Attributes *Attributes
}

// Attributes are what selectors look at in an object. They are immutable.
type Attributes struct {
	// View names the schema that they were found by: one resource may be served by
	// several that select by different fields.
	View   string
	Labels []Label
	// Signature is a Bloom filter of the labels, which the writer defines.
	Signature uint64
	// Fields are the names of the selectable fields, ascending, and Values their
	// values. Objects of one resource share the names.
	Fields, Values []string
}

// Label is one label of an object.
type Label struct{ Key, Value string }

// MaxKeyBytes is the greatest Key.Len of a new object. A row of a B-tree index in
// PostgreSQL has at most 2,704 bytes, however well it compresses; what upstream
// validates has 63 bytes for a namespace and 253 for a name, except for RBAC, whose
// names are path segments of any length.
const MaxKeyBytes = 1024

// Len is the number of bytes in the key's texts.
func (k Key) Len() int {
	return len(k.Group) + len(k.Resource) + len(k.Owner.String()) + len(k.Namespace) + len(k.Name)
}

// Check returns an error that matches ErrInvalid unless the write can be stored
// in every database: texts are UTF-8 without U+0000 (PostgreSQL has no way to
// keep it), the key's resource and name and a new state's value aren't empty, a new
// key has at most MaxKeyBytes, and an expiry is in a year of four digits. The
// writes of a batch share a transaction: nothing that Check lets through may make
// the database refuse one of them.
func (w *Write) Check() error {
	switch {
	case w.Op == Create && w.Key.Len() > MaxKeyBytes:
		return ErrKeyTooLong
	case !w.Key.Storable():
		return fmt.Errorf("%w: key %q", ErrInvalid, w.Key)
	case !storable(w.UID) || !storable(w.Form):
		return fmt.Errorf("%w: uid or form of %q", ErrInvalid, w.Key)
	case (w.Op == Create) != (w.Replaces == 0) || w.Replaces < 0:
		return fmt.Errorf("%w: %s of revision %d", ErrInvalid, w.Op, w.Replaces)
	case w.Op == Delete:
		return nil
	case w.Op != Create && w.Op != Update:
		return fmt.Errorf("%w: op %q", ErrInvalid, w.Op)
	case !w.Expires.IsZero() && (w.Expires.UTC().Year() < 1 || w.Expires.UTC().Year() > 9999):
		return fmt.Errorf("%w: expiry of %q", ErrInvalid, w.Key)
	case len(w.Value) == 0 || !utf8.Valid(w.Value) || bytes.IndexByte(w.Value, 0) >= 0:
		return fmt.Errorf("%w: value of %q", ErrInvalid, w.Key)
	}
	return nil
}

// Storable reports whether an object can exist under the key.
func (k Key) Storable() bool {
	return k.Resource != "" && k.Name != "" &&
		storable(k.Group) && storable(k.Resource) && storable(k.Namespace) && storable(k.Name)
}

// Check reports whether objects in the range can exist. (A database might answer with an
// error about the encoding for a range in which none can.) It fails with ErrInvalid if the
// position can't be compared with keys.
func (r Range) Check() (nonEmpty bool, err error) {
	if r.After != nil && !(storable(r.After.Namespace) && storable(r.After.Name)) {
		return false, fmt.Errorf("%w: position %q", ErrInvalid, *r.After)
	}
	return storable(r.Group) && storable(r.Resource) && storable(r.Namespace) && storable(r.Name), nil
}

func storable(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// Clean returns the author, and replaces the characters that a database can't store:
// names come from certificates and tokens, audit IDs from request headers.
func (a Author) Clean() Author {
	return Author{User: clean(a.User), Verb: clean(a.Verb), AuditID: clean(a.AuditID)}
}

func clean(s string) string {
	if storable(s) {
		return s
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// Change is one committed change.
type Change struct {
	Op       Op
	Revision int64
	Time     time.Time
	Author   Author
	// New is the state that the change wrote; for Delete it has the key, UID
	// and the delete's Revision, and a nil Value.
	New Record
	// Old is what the change replaced; nil for Create. Its Value may be nil
	// where the change was made by this process a moment ago (the feed has it).
	Old *Record
	// OldBytes is the length of the value that the change replaced; 0 for Create.
	OldBytes int64
	// Attributes are the Write's; nil for changes read back from the database.
	Attributes *Attributes
}

// Size is the number of bytes in the change's Values.
func (c *Change) Size() int {
	if c.Old == nil {
		return len(c.New.Value)
	}
	return len(c.New.Value) + len(c.Old.Value)
}

// Range selects records of one resource.
type Range struct {
	Group    string
	Resource string
	Owner    Owner
	// Namespace narrows to one namespace; empty means all.
	Namespace string
	// Name narrows to one name; empty means all.
	Name string
	// After, when not nil, leaves out every (namespace, name) up to and
	// including it.
	After *Position
}

// Position is a place in a Range's order.
type Position struct {
	Namespace string
	Name      string
}

// State is where a store stands.
type State struct {
	// Revision is the last revision given; 0 in an empty store.
	Revision int64
	// Compacted is the last revision whose history is gone: reads at, and
	// watches after, a revision < Compacted fail with ErrCompacted.
	Compacted int64
	// Epoch changes when the database has lost commits, or a restore has put other
	// data there: revisions of two epochs can't be compared.
	Epoch string
	// Time is the database's clock as of the answer: replicas of one database
	// agree on it, whatever their own clocks say.
	Time time.Time
}
