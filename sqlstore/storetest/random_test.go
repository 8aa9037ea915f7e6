package storetest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"byre/sqlstore"
)

// testAgainstModel makes the same random calls of the driver and of the Model, and compares all
// their results.
func testAgainstModel(f fixture) {
	seed := uint64(time.Now().UnixNano())
	f.Logf("seed %d", seed)
	w := walk{driver: f, model: fixture{TB: f.TB, Driver: NewModel()}, random: rand.New(rand.NewPCG(seed, 0))}
	for range rounds {
		w.write()
		w.read()
		if w.random.IntN(20) == 0 {
			upTo := w.random.Int64N(w.driver.state().Revision + 2)
			w.driver.compact(upTo)
			w.model.compact(upTo)
			w.deleteHistory()
		}
	}
	w.compareChanges(sqlstore.ChangesQuery{After: w.driver.state().Compacted, Limit: 1_000_000})
}

// deleteHistory deletes some changes of one resource.
func (w *walk) deleteHistory() {
	d := sqlstore.Deletion{Of: w.key().Of(), UpTo: w.random.Int64N(w.driver.state().Revision + 2),
		Limit: 1 + w.random.IntN(10)}
	if w.random.IntN(2) == 0 {
		d.Before = time.Now().Add(anHour)
	}
	ages := map[sqlstore.Resource]time.Duration{d.Of: time.Duration(w.random.IntN(10)-1) * time.Second}
	for _, driver := range []fixture{w.driver, w.model} {
		if !w.isKnown(d.Of) {
			continue
		}
		if err := driver.SetRetainedFor(w.driver.Context(), ages); err != nil {
			w.driver.Fatal(err)
		}
	}
	got, _, err := w.driver.DeleteHistory(w.driver.Context(), d)
	want, _, _ := w.model.DeleteHistory(w.driver.Context(), d)
	if err != nil || got != want {
		w.driver.Fatalf("deletion %+v: %d, %v; model %d", d, got, err, want)
	}
}

// isKnown reports whether there was ever an object of a resource.
func (w *walk) isKnown(of sqlstore.Resource) bool {
	histories, _ := w.model.Histories(w.driver.Context())
	return slices.ContainsFunc(histories, func(h sqlstore.History) bool { return h.Resource == of })
}

// write commits a batch of writes, most of them with preconditions that hold.
func (w *walk) write() {
	keys, required := make(map[sqlstore.Key]bool), make(map[sqlstore.Key]bool)
	var batch []sqlstore.Write
	for range 1 + w.random.IntN(8) {
		k := w.key()
		if keys[k] || required[k] {
			continue
		}
		keys[k] = true
		c := w.writeOf(k)
		// A refused create may leave a resource behind, which PostgreSQL takes for one that has had
		// an object.
		isKnown := c.Op != sqlstore.Create || w.isKnown(k.Of())
		if of := w.key(); w.random.IntN(3) == 0 && !keys[of] && isKnown {
			required[of] = true
			c.Requires = &sqlstore.Requirement{Key: of, UID: "uid-" + of.Name, Generation: w.random.Int64N(2) + 1}
		}
		if of := w.key(); w.random.IntN(20) == 0 {
			c.RequiresNone = &sqlstore.Resource{Group: of.Group, Resource: "pods" + of.Name, Owner: of.Owner}
		}
		batch = append(batch, c)
	}
	got, want := w.driver.commit(batch...), w.model.commit(batch...)
	ignoreTime := cmpopts.IgnoreFields(sqlstore.Outcome{}, "Time")
	if diff := cmp.Diff(want, got, ignoreTime, cmp.Comparer(sameError)); diff != "" {
		w.driver.Fatalf("outcomes of %+v (-model +driver):\n%s", batch, diff)
	}
}

func (w *walk) read() {
	k := w.key()
	gotRecord, gotAt, gotErr := w.driver.Get(w.driver.Context(), k)
	wantRecord, wantAt, wantErr := w.model.Get(w.driver.Context(), k)
	if diff := cmp.Diff(wantRecord, gotRecord); diff != "" || gotAt != wantAt || !sameError(gotErr, wantErr) {
		w.driver.Fatalf("get %v: %d, %v; model %d, %v\n%s", k, gotAt, gotErr, wantAt, wantErr, diff)
	}
	for range 3 {
		w.compareList()
	}
	last := w.model.state().Revision
	of := k.Of()
	for _, resource := range []*sqlstore.Resource{nil, &of} {
		w.compareChanges(sqlstore.ChangesQuery{
			After: w.random.Int64N(last + 2), Before: w.random.Int64N(2) * w.random.Int64N(last+2), Of: resource,
			KeysOnly: w.random.IntN(4) == 0, Limit: 1 + w.random.IntN(10), Size: w.random.IntN(2) * w.random.IntN(200),
		})
	}
	w.compareKept(k)
	w.compareHistories(of)
	gotCompacted, err := w.driver.Compacted(w.driver.Context(), of)
	if wantCompacted, _ := w.model.Compacted(w.driver.Context(), of); err != nil || gotCompacted != wantCompacted {
		w.driver.Fatalf("%v is compacted up to %d, %v; model %d", of, gotCompacted, err, wantCompacted)
	}

	now := time.Unix(w.random.Int64N(4_000_000_000), 0)
	got, err := w.driver.Expired(w.driver.Context(), time.Time{}, now, 5)
	want, _ := w.model.Expired(w.driver.Context(), time.Time{}, now, 5)
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); err != nil || diff != "" {
		w.driver.Fatalf("expired at %v: %v\n%s", now, err, diff)
	}
}

// compareKept compares the changes that are left of a namespace, or of an object in it.
func (w *walk) compareKept(k sqlstore.Key) {
	q := sqlstore.ChangesQuery{
		After: w.random.Int64N(w.model.state().Revision + 2), Limit: 1 + w.random.IntN(20),
		Size: w.random.IntN(2) * w.random.IntN(200), Kept: true,
		KeysOnly: w.random.IntN(4) == 0,
	}
	if w.random.IntN(2) == 0 {
		q.Before = []int64{math.MaxInt64, 1 + w.random.Int64N(w.model.state().Revision+2)}[w.random.IntN(2)]
		q.After = w.random.Int64N(2) * w.random.Int64N(q.Before)
	}
	of := k.Of()
	if w.random.IntN(2) == 0 {
		q.Of = &of
	}
	switch w.random.IntN(5) {
	case 0:
		q.Namespaces = []string{k.Namespace}
	case 4:
		name := []rune(k.Name)
		q.Namespaces, q.NamePrefix = []string{k.Namespace}, string(name[:w.random.IntN(len(name)+1)])
	case 1:
		q.Namespaces, q.Name = []string{k.Namespace}, k.Name
	case 2:
		q.Namespaces = []string{k.Namespace, w.key().Namespace}
	}
	w.compareChanges(q)
}

func (w *walk) compareList() {
	k := w.key()
	q := sqlstore.Query{Range: sqlstore.Range{Group: k.Group, Resource: k.Resource, Owner: k.Owner},
		KeysOnly: w.random.IntN(4) == 0}
	if w.random.IntN(2) == 0 {
		q.Namespace = k.Namespace
	}
	if w.random.IntN(4) == 0 {
		q.Name = k.Name
	}
	if w.random.IntN(2) == 0 {
		q.At = w.random.Int64N(w.model.state().Revision + 2)
		q.Replaced = q.At != 0 && w.random.IntN(2) == 0
	}
	if w.random.IntN(2) == 0 {
		q.Limit = 1 + w.random.IntN(5)
	}
	if w.random.IntN(2) == 0 {
		after := w.key()
		q.After = &sqlstore.Position{Namespace: after.Namespace, Name: after.Name}
	}
	got, gotListed, gotErr := collect(w.driver.Context(), w.driver.Driver, q)
	want, wantListed, wantErr := collect(w.driver.Context(), w.model.Driver, q)
	diff := cmp.Diff(want, got, cmpopts.EquateEmpty())
	if diff != "" || gotListed != wantListed || !sameError(gotErr, wantErr) {
		w.driver.Fatalf("list %+v after %+v: %+v, %v; model %+v, %v\n%s", q, q.After, gotListed, gotErr, wantListed, wantErr,
			diff)
	}
}

func (w *walk) compareHistories(of sqlstore.Resource) {
	limit, upTo := 1+w.random.Int64N(20), w.random.Int64N(w.model.state().Revision+2)
	gotCount, gotOldest, err := w.driver.CountChanges(w.driver.Context(), of, upTo, limit)
	wantCount, wantOldest, _ := w.model.CountChanges(w.driver.Context(), of, upTo, limit)
	if err != nil || gotCount != wantCount || gotOldest != wantOldest {
		w.driver.Fatalf("%d of the changes of %v, from %d, %v; model %d from %d", gotCount, of, gotOldest, err, wantCount,
			wantOldest)
	}
	got, err := w.driver.Histories(w.driver.Context())
	want, _ := w.model.Histories(w.driver.Context())
	byResource := cmpopts.SortSlices(func(a, b sqlstore.History) int { return a.Resource.Compare(b.Resource) })
	ignoreTime := cmpopts.IgnoreFields(sqlstore.History{}, "FirstTime")
	if diff := cmp.Diff(want, got, byResource, ignoreTime, cmpopts.EquateEmpty()); diff != "" || err != nil {
		w.driver.Fatalf("histories: %v\n%s", err, diff)
	}
}

func (w *walk) compareChanges(q sqlstore.ChangesQuery) {
	got, gotErr := w.driver.Changes(w.driver.Context(), q)
	want, wantErr := w.model.Changes(w.driver.Context(), q)
	ignoreTime := cmpopts.IgnoreFields(sqlstore.Change{}, "Time")
	if diff := cmp.Diff(want, got, ignoreTime, cmpopts.EquateEmpty()); diff != "" || !sameError(gotErr, wantErr) {
		w.driver.Fatalf("changes of %+v: %v; model %v\n%s", q, gotErr, wantErr, diff)
	}
}

// operation is one call on one key: a read if op is empty, or else a write.
type operation struct {
	op       sqlstore.Op
	key      sqlstore.Key
	replaces int64
}

// answer is the result of an operation.
type answer struct {
	// ok is false if the precondition of a write did not hold.
	ok bool
	// revision is that of the record read, or of the change; 0 if there is no record.
	revision int64
}

// register is the model of one key. Its state is the key's revision; 0 if there is no record.
var register = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		keys := make(map[sqlstore.Key][]porcupine.Operation)
		for _, o := range history {
			k := o.Input.(operation).key
			keys[k] = append(keys[k], o)
		}
		var parts [][]porcupine.Operation
		for _, part := range keys {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return int64(0) },
	Step: func(state, input, output any) (bool, any) {
		at, in, out := state.(int64), input.(operation), output.(answer)
		switch {
		case in.op == "":
			return out.revision == at, at
		case !out.ok:
			return at != in.replaces, at
		case in.op == sqlstore.Delete:
			return at == in.replaces, int64(0)
		default:
			return at == in.replaces && out.revision > at, out.revision
		}
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

// Reads and compare-and-swaps by many clients are linearizable.
func testLinearizable(f fixture) {
	store, stop := start(f, sqlstore.Options{BatchWrites: 5})
	defer stop()
	var (
		clients sync.WaitGroup
		mu      sync.Mutex
		history []porcupine.Operation
	)
	begin := time.Now()
	for id := range 8 {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(uint64(id), uint64(begin.UnixNano())))
			var known [3]int64
			for range 40 {
				n := random.IntN(len(known))
				in := operation{key: key("n", fmt.Sprint(n)), replaces: known[n]}
				switch random.IntN(4) {
				case 0:
				case 1:
					if in.op = sqlstore.Delete; in.replaces == 0 {
						in.op = ""
					}
				default:
					if in.op = sqlstore.Update; in.replaces == 0 {
						in.op = sqlstore.Create
					}
				}
				call := time.Since(begin)
				out, err := perform(f, store, in)
				back := time.Since(begin)
				if err != nil {
					f.Errorf("%+v: %v", in, err)
					return
				}
				known[n] = out.revision
				if in.op == sqlstore.Delete {
					known[n] = 0
				}
				mu.Lock()
				history = append(history, porcupine.Operation{
					ClientId: id, Input: in, Call: call.Nanoseconds(), Output: out, Return: back.Nanoseconds(),
				})
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	// porcupine.Unknown means that the search took too long, as on a busy machine.
	if got := porcupine.CheckOperationsTimeout(register, history, patience); got == porcupine.Illegal {
		f.Errorf("the history of %d operations is not linearizable", len(history))
	}
}

// perform does one operation.
func perform(f fixture, store *sqlstore.Store, in operation) (answer, error) {
	if in.op == "" {
		r, _, err := store.Get(f.Context(), in.key)
		if errors.Is(err, sqlstore.ErrNotFound) {
			err = nil
		}
		return answer{ok: true, revision: r.Revision}, err
	}
	w := sqlstore.Write{Op: in.op, Key: in.key, Replaces: in.replaces, Value: []byte(`1`)}
	c, err := store.Commit(f.Context(), w)
	switch {
	case errors.Is(err, sqlstore.ErrConflict), errors.Is(err, sqlstore.ErrNotFound), errors.Is(err, sqlstore.ErrExists):
		return answer{}, nil
	case err != nil:
		return answer{}, err
	}
	return answer{ok: true, revision: c.Revision}, nil
}
