package backup

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
	"unsafe"

	"byre/sqlstore"
)

// version is the version of the format; see doc.go.
const version = 2

// line is one line of a backup. Exactly one of its members is set.
type line struct {
	Header *header `json:"byre,omitempty"`
	Object *object `json:"object,omitempty"`
	Change *change `json:"change,omitempty"`
	End    *end    `json:"end,omitempty"`
}

type header struct {
	Version   int       `json:"version"`
	Program   string    `json:"program,omitempty"`
	Revision  int64     `json:"revision"`
	Compacted int64     `json:"compacted"`
	Epoch     string    `json:"epoch"`
	Cluster   string    `json:"cluster,omitempty"`
	Time      time.Time `json:"time"`
	Objects   int64     `json:"objects"`
	History   []kept    `json:"history,omitempty"`
}

// kept has the sqlstore.Retained of a resource.
type kept struct {
	Group     string `json:"group,omitempty"`
	Resource  string `json:"resource"`
	Owner     string `json:"owner"`
	Compacted int64  `json:"compacted"`
	// RetainedFor is in seconds.
	RetainedFor int64 `json:"retainedFor,omitempty"`
}

// historyOf returns Header.Retained.
func historyOf(retained map[sqlstore.Resource]sqlstore.Retained) (all []kept) {
	for of, r := range retained {
		all = append(all, kept{of.Group, of.Resource, of.Owner.String(), r.Compacted, int64(r.RetainedFor / time.Second)})
	}
	slices.SortFunc(all, func(a, b kept) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Owner, b.Owner))
	})
	return all
}

// retained is the reverse of historyOf.
func (h *header) retained() (map[sqlstore.Resource]sqlstore.Retained, error) {
	retained := make(map[sqlstore.Resource]sqlstore.Retained)
	for _, r := range h.History {
		k, err := key{Group: r.Group, Resource: r.Resource, Owner: r.Owner}.key()
		if err != nil || r.Compacted < 0 || r.Compacted > h.Compacted || r.RetainedFor > math.MaxInt64/int64(time.Second) {
			return nil, fmt.Errorf("%w: history of %s from revision %d: %w", sqlstore.ErrBroken, r.Resource, r.Compacted, err)
		}
		retained[k.Of()] = sqlstore.Retained{Compacted: r.Compacted, RetainedFor: time.Duration(max(r.RetainedFor, -1)) * time.Second}
	}
	return retained, nil
}

// author has the members of an author that both kinds of rows have.
type author struct {
	User        string `json:"user,omitempty"`
	RealUser    string `json:"realUser,omitempty"`
	Verb        string `json:"verb,omitempty"`
	Subresource string `json:"subresource,omitempty"`
	Manager     string `json:"manager,omitempty"`
}

func authorOf(a sqlstore.Author) author {
	return author{User: a.User, RealUser: a.RealUser, Verb: a.Verb, Subresource: a.Subresource, Manager: a.Manager}
}

func (a author) author() sqlstore.Author {
	return sqlstore.Author{User: a.User, RealUser: a.RealUser, Verb: a.Verb, Subresource: a.Subresource, Manager: a.Manager}
}

type key struct {
	Group     string `json:"group,omitempty"`
	Resource  string `json:"resource"`
	Owner     string `json:"owner"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

type object struct {
	key
	UID        string    `json:"uid,omitempty"`
	Generation int64     `json:"generation,omitempty"`
	Created    int64     `json:"created"`
	Revision   int64     `json:"revision"`
	Time       time.Time `json:"time"`
	author
	Encoding string    `json:"form,omitempty"`
	Expires  time.Time `json:"expires,omitzero"`
	Value    string    `json:"value"`
}

type change struct {
	Revision int64     `json:"revision"`
	Op       string    `json:"op"`
	Time     time.Time `json:"time"`
	author
	AuditID string `json:"auditID,omitempty"`
	key
	UID      string    `json:"uid,omitempty"`
	Replaces int64     `json:"replaces,omitempty"`
	Created  int64     `json:"created"`
	Encoding string    `json:"form,omitempty"`
	Expires  time.Time `json:"expires,omitzero"`
	Value    string    `json:"value,omitempty"`
}

type end struct {
	Objects int64  `json:"objects"`
	Changes int64  `json:"changes"`
	SHA256  string `json:"sha256"`
}

func keyOf(k sqlstore.Key) key {
	return key{k.Group, k.Resource, k.Owner.String(), k.Namespace, k.Name}
}

func (k key) key() (sqlstore.Key, error) {
	key := sqlstore.Key{Group: k.Group, Resource: k.Resource, Namespace: k.Namespace, Name: k.Name}
	if err := key.Owner.Scan(k.Owner); err != nil {
		return key, fmt.Errorf("%w: owner of %q is %q", sqlstore.ErrBroken, k.Name, k.Owner)
	}
	return key, nil
}

func objectOf(r *sqlstore.ObjectRow) *object {
	return &object{
		key: keyOf(r.Key), UID: r.UID, Generation: r.Generation, Created: r.Created, Revision: r.Revision, Time: r.Time.UTC(),
		author: authorOf(r.Author), Encoding: r.Encoding, Expires: utc(r.Expires), Value: text(r.Value),
	}
}

func (o *object) row() (*sqlstore.ObjectRow, error) {
	k, err := o.key.key()
	return &sqlstore.ObjectRow{
		Record: sqlstore.Record{
			Key: k, UID: o.UID, Created: o.Created, Revision: o.Revision, Encoding: o.Encoding, Expires: o.Expires, Value: []byte(o.Value),
		},
		Generation: o.Generation, Time: o.Time, Author: o.author.author(),
	}, err
}

func changeOf(r *sqlstore.ChangeRow) *change {
	return &change{
		Revision: r.Revision, Op: string(r.Op), Time: r.Time.UTC(), author: authorOf(r.Author), AuditID: r.Author.AuditID,
		key: keyOf(r.Key), UID: r.UID, Replaces: r.Replaces, Created: r.Created, Encoding: r.Encoding, Expires: utc(r.Expires), Value: text(r.Value),
	}
}

func (c *change) row() (*sqlstore.ChangeRow, error) {
	k, err := c.key.key()
	r := &sqlstore.ChangeRow{
		Key: k, Op: sqlstore.Op(c.Op), Revision: c.Revision, Time: c.Time,
		Author: c.author.author(), UID: c.UID, Replaces: c.Replaces, Created: c.Created, Encoding: c.Encoding, Expires: c.Expires,
	}
	r.Author.AuditID = c.AuditID
	if c.Value != "" {
		r.Value = []byte(c.Value)
	}
	return r, err
}

// utc returns t in UTC. It returns the zero time unchanged, so that omitzero leaves it out.
func utc(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC()
}

// text returns a value as a string that shares its memory. Nobody writes to a value
// (sqlstore.Record).
func text(value []byte) string { return unsafe.String(unsafe.SliceData(value), len(value)) }
