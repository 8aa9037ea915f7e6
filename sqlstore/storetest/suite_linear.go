package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"byre/sqlstore"
)

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
