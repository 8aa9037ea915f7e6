package sqlstore

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
	"unsafe"
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

// String returns the value of the columns named defined_by.
func (o Owner) String() string { return ownerNames[o] }

// MarshalText implements encoding.TextMarshaler.
func (o Owner) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (o *Owner) UnmarshalText(text []byte) error {
	i := slices.Index(ownerNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("the owner is %q", text)
	}
	*o = Owner(i)
	return nil
}

// Scan implements sql.Scanner.
func (o *Owner) Scan(column any) error {
	if text, ok := column.(string); ok && o.UnmarshalText([]byte(text)) == nil {
		return nil
	}
	return fmt.Errorf("defined_by in the database is %v", column)
}

// Key names one object. Namespace is empty for a cluster-scoped object. Keys are
// ordered by (Group, Resource, Owner, Namespace, Name), each compared as bytes, in
// both databases.
type Key struct {
	Group     string `json:"group,omitempty"`
	Resource  string `json:"resource"`
	Owner     Owner  `json:"owner"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// Of returns the resource of the object.
func (k Key) Of() Resource { return Resource{Group: k.Group, Resource: k.Resource, Owner: k.Owner} }

// Compare returns a negative number, 0 or a positive number if k is before, equal to or
// after other in the order of keys.
func (k Key) Compare(other Key) int {
	return cmp.Or(k.Of().Compare(other.Of()), strings.Compare(k.Namespace, other.Namespace),
		strings.Compare(k.Name, other.Name))
}

// Record is one object as it is stored at one revision. It is immutable.
type Record struct {
	Key
	// UID is metadata.uid, as given by the writer; it may be empty.
	UID string `json:"uid,omitempty"`
	// Created is the revision that created the object; Revision the one that
	// wrote this state of it. 0 < Created <= Revision.
	Created  int64 `json:"created"`
	Revision int64 `json:"revision"`
	// Encoding identifies how Value is encoded (program, storage version, schema). The
	// store keeps it and does not look at it. A reader that would itself write with
	// this Encoding may answer with Value as it is.
	Encoding string `json:"encoding,omitempty"`
	// Expires is when the store deletes the record; zero means never.
	Expires time.Time `json:"expires,omitzero"`
	// Value is a JSON text. It is shared: nobody writes to it.
	Value []byte `json:"-"`
}

// Text and Bytes convert a value without copying it. That is safe because nobody writes to a value, and the
// drivers' libraries copy what they send and what they return.
func Text(value []byte) string { return unsafe.String(unsafe.SliceData(value), len(value)) }

// Bytes is the reverse of Text.
func Bytes(value string) []byte { return unsafe.Slice(unsafe.StringData(value), len(value)) }

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
	User string `json:"user,omitempty"`
	// RealUser is the authenticated user who impersonated User; empty if nobody did.
	RealUser string `json:"realUser,omitempty"`
	// Verb is the verb of the request: create, update, patch, apply, delete,
	// deletecollection, or expire for what the store deleted by itself.
	Verb string `json:"verb,omitempty"`
	// Subresource is that of the request (status, scale); empty for the object itself.
	Subresource string `json:"subresource,omitempty"`
	// Manager is the field manager of the request; empty if the request changes no fields.
	Manager string `json:"manager,omitempty"`
	// AuditID is the request's audit ID; it may be empty.
	AuditID string `json:"auditID,omitempty"`
}

// Write is a request to make one change.
type Write struct {
	Op  Op
	Key Key
	// Replaces is the precondition: the revision that the key must be at. It is 0 for a
	// Create (the object must not exist), and > 0 for an Update and a Delete.
	Replaces int64
	// Requires, unless nil, is a precondition too: another object is as the writer knows it.
	Requires *Requirement
	// RequiresNone, unless nil, is a precondition too: the resource has no objects.
	RequiresNone *Resource
	// UID, Encoding and Value are those of the new state. A Delete ignores them.
	UID      string
	Encoding string
	Value    []byte
	// Expires is the absolute expiry of the new state; zero means never.
	Expires time.Time
	// Generation is metadata.generation of the new state; 0 if it has none. That of a
	// CustomResourceDefinition is negative once its deletion has begun: it is what the
	// Requirements of other writes are compared with.
	Generation int64
	Author     Author
	// Grows says that the write makes the database larger. While the quota is exceeded, such
	// a write fails with ErrQuota.
	Grows bool
	// Attributes are those of the new state; nil if the writer does not know them. The
	// store does not store them: Publish gets them with the Change.
	Attributes *Attributes
}

// Requirement is what a write requires of another object: the record under Key has this UID and
// this Generation. An empty one, and 0, meet every requirement: whoever wrote the record did not know them.
//
// Invariant: the requirement holds in the transaction of the write, whichever process changes
// the other object. The driver checks it there; the queue keeps a write of an object, and a
// write that requires it, out of one batch.
type Requirement struct {
	Key        Key
	UID        string
	Generation int64
}

// Attributes are the labels and fields of an object by which label and field selectors
// select. They are immutable.
type Attributes struct {
	// View names the set of selectable fields. One resource may be served with several
	// sets; a reader that uses another set ignores these Attributes.
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

// MaxKeyBytes is the greatest Key.Len of a new object. An entry of a B-tree index in
// PostgreSQL has at most 2,704 bytes. Kubernetes bounds a namespace to 63 bytes and most
// names to 253; the names of RBAC objects are path segments of any length.
const MaxKeyBytes = 1024

// Len returns the number of bytes in all parts of the key.
func (k Key) Len() int {
	return len(k.Group) + len(k.Resource) + len(k.Owner.String()) + len(k.Namespace) + len(k.Name)
}

// Check returns an error that matches ErrInvalid unless both databases can store the
// write: texts are UTF-8 without U+0000 (which PostgreSQL can't store); the resource, the
// name and the value of a new state aren't empty; the key of a Create has at most
// MaxKeyBytes; an expiry is in a year of four digits.
//
// Invariant: a database does not refuse a write that Check has accepted. The writes of a
// batch share a transaction, which one refused write would fail for all of them.
func (w *Write) Check() error {
	switch {
	case w.Op == Create && w.Key.Len() > MaxKeyBytes:
		return ErrKeyTooLong
	case !w.Key.Storable():
		return fmt.Errorf("%w: key %q", ErrInvalid, w.Key)
	case !storable(w.UID) || !storable(w.Encoding):
		return fmt.Errorf("%w: uid or encoding of %q", ErrInvalid, w.Key)
	case (w.Op == Create) != (w.Replaces == 0) || w.Replaces < 0:
		return fmt.Errorf("%w: %s of revision %d", ErrInvalid, w.Op, w.Replaces)
	case w.Requires != nil && !(w.Requires.Key.Storable() && storable(w.Requires.UID)):
		return fmt.Errorf("%w: requirement of %q", ErrInvalid, w.Key)
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

// Storable reports whether both databases can store an object under the key.
func (k Key) Storable() bool {
	return k.Of().Storable() && k.Name != "" && storable(k.Namespace) && storable(k.Name)
}

// Storable reports whether both databases can store objects of the resource.
func (r Resource) Storable() bool {
	return r.Resource != "" && storable(r.Group) && storable(r.Resource)
}

// Start returns the position after which the range begins. nonEmpty is false if no objects can be
// in the range: the caller then does not ask the database, which might fail because of the encoding.
// Start fails with ErrInvalid if After can't be compared with keys.
func (r Range) Start() (start Position, nonEmpty bool, err error) {
	start.Namespace = r.Namespace
	nonEmpty = storable(r.Group) && storable(r.Resource) && storable(r.Namespace) && storable(r.Name)
	switch {
	case r.After == nil:
	case !storable(r.After.Namespace) || !storable(r.After.Name):
		return start, false, fmt.Errorf("%w: position %q", ErrInvalid, *r.After)
	case r.Namespace == "":
		start = *r.After
	case r.After.Namespace > r.Namespace:
		nonEmpty = false
	case r.After.Namespace == r.Namespace:
		start.Name = r.After.Name
	}
	return start, nonEmpty, nil
}

// storable reports whether both databases can store a text.
func storable(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// Clean returns the author with U+FFFD in place of what a database can't store. Names come
// from certificates and tokens, and audit IDs from request headers.
func (a Author) Clean() Author {
	return Author{
		User: clean(a.User), RealUser: clean(a.RealUser), Verb: clean(a.Verb),
		Subresource: clean(a.Subresource), Manager: clean(a.Manager), AuditID: clean(a.AuditID),
	}
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
	// New is the state that the change wrote. That of a Delete has the key, the UID,
	// the create revision and the revision of the Delete, and no Value.
	New Record
	// Old is the state that the change replaced; nil for a Create. In a change that
	// Commit returns or Publish gets, Old has no Value and no Encoding, because the driver
	// does not return them.
	Old *Record
	// OldBytes is the length of the replaced value in bytes; 0 for a Create.
	OldBytes int64
	// Attributes are those of the Write; nil for a change read from the database.
	Attributes *Attributes
}

// Size returns the number of bytes in the values of New and Old.
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
	// Namespace selects one namespace; empty means all.
	Namespace string
	// Name selects one name; empty means all.
	Name string
	// After, unless nil, selects only the records after this position.
	After *Position
}

// Of returns the resource of the records.
func (r Range) Of() Resource { return Resource{Group: r.Group, Resource: r.Resource, Owner: r.Owner} }

// Position is a place in the order of the records of one resource.
type Position struct {
	Namespace string
	Name      string
}

// State is the state of a store's counters.
type State struct {
	// Revision is the last revision given; 0 in an empty store.
	Revision int64
	// Compacted is the greatest History.ResumableAfter: every change after it is there, and Changes of all resources
	// after an earlier revision fail with ErrCompacted; reads of one resource go by that resource's.
	Compacted int64
	// Epoch identifies the contents of the database. It changes when the database has
	// lost commits, or when a restore has replaced its contents: revisions of two epochs
	// can't be compared.
	Epoch string
	// Time is the database's clock. All servers of one database get the same clock,
	// whatever their own clocks show.
	Time time.Time
}
