package server_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func keysOf(kvs []*mvccpb.KeyValue) string {
	var keys []string
	for _, kv := range kvs {
		keys = append(keys, string(kv.Key))
	}
	return strings.Join(keys, ",")
}

func TestKV_PutGetDelete(t *testing.T) {
	onEach(t, func(f fixture) {
		first := f.get("a")
		if h := first.Header; h.Revision != 1 || h.ClusterId == 0 || h.MemberId == 0 || h.RaftTerm == 0 {
			f.Errorf("header of an empty store: %v", h)
		}
		created := f.put("a", "1")
		updated := f.put("a", "1")
		if created != 2 || updated != 3 {
			f.Errorf("revisions %d and %d, want 2 and 3", created, updated)
		}
		kv := f.get("a").Kvs[0]
		if kv.CreateRevision != created || kv.ModRevision != updated || kv.Version != 2 || string(kv.Value) != "1" {
			f.Errorf("after an update: %v", kv)
		}
		deleted, err := f.Delete(f.Context(), "a", clientv3.WithPrevKV())
		if err != nil || deleted.Deleted != 1 || len(deleted.PrevKvs) != 1 || deleted.PrevKvs[0].Version != 2 {
			f.Fatalf("delete: %v, %v", deleted, err)
		}
		again, err := f.Delete(f.Context(), "a")
		if err != nil || again.Deleted != 0 || again.Header.Revision != deleted.Header.Revision {
			f.Errorf("delete of nothing: %v, %v", again, err)
		}
		recreated := f.put("a", "2")
		if kv := f.get("a").Kvs[0]; kv.CreateRevision != recreated || kv.Version != 1 {
			f.Errorf("after delete and put: %v", kv)
		}
		// The version of a past revision.
		if kv := f.get("a", clientv3.WithRev(updated)).Kvs[0]; kv.Version != 2 || kv.CreateRevision != created {
			f.Errorf("at a past revision: %v", kv)
		}
	})
}

func TestKV_BytesAreKept(t *testing.T) {
	onEach(t, func(f fixture) {
		random := make([]byte, 10_000)
		for i := range random {
			random[i] = byte(rand.Uint32())
		}
		all := make([]byte, 256)
		for i := range all {
			all[i] = byte(i)
		}
		for i, value := range [][]byte{nil, []byte("text ä"), []byte("k8s\x00\n\x05proto"), all, random, {0}, {0xff}} {
			key := fmt.Sprintf("/registry/things/%d", i)
			f.put(key, string(value))
			if kv := f.get(key).Kvs[0]; !bytes.Equal(kv.Value, value) || string(kv.Key) != key {
				f.Errorf("value %d came back as %q", i, kv.Value)
			}
		}
		keys := []string{"\x00", "\x01", "\x02", "a", "a\x00", "a\x01", "ä", "\x80", "\xff\xff\xff", string(all[1:])}
		for _, key := range keys {
			f.put(key, key)
		}
		slices.Sort(keys)
		var got []string
		for _, kv := range f.get("\x00", clientv3.WithFromKey()).Kvs {
			if !strings.HasPrefix(string(kv.Key), "/registry/") {
				got = append(got, string(kv.Key))
			}
		}
		if !slices.Equal(got, keys) {
			f.Errorf("keys %q, want %q", got, keys)
		}
	})
}

func TestKV_Range(t *testing.T) {
	onEach(t, func(f fixture) {
		prefix := "/registry/pods/"
		for _, name := range []string{"a", "b", "c"} {
			f.put(prefix+name, "v"+name)
		}
		past := f.get("x").Header.Revision
		f.put(prefix+"d", "0")
		f.put(prefix+"e", "z")
		f.put("/registry/podtemplates/a", "")
		f.put("/registry/pods", "")
		current := f.put("/zzz", "")
		in := func(options ...clientv3.OpOption) []clientv3.OpOption {
			return append([]clientv3.OpOption{clientv3.WithPrefix()}, options...)
		}
		for name, c := range map[string]struct {
			options []clientv3.OpOption
			keys    string
			more    bool
			count   int64
		}{
			"all":             {in(), "a,b,c,d,e", false, 5},
			"limit":           {in(clientv3.WithLimit(2)), "a,b", true, 5},
			"limit of all":    {in(clientv3.WithLimit(5)), "a,b,c,d,e", false, 5},
			"negative limit":  {in(clientv3.WithLimit(-1)), "a,b,c,d,e", false, 5},
			"count":           {in(clientv3.WithCountOnly(), clientv3.WithLimit(2)), "", false, 5},
			"past":            {in(clientv3.WithRev(past)), "a,b,c", false, 3},
			"past limit":      {in(clientv3.WithRev(past), clientv3.WithLimit(2)), "a,b", true, 3},
			"past count":      {in(clientv3.WithRev(past), clientv3.WithCountOnly()), "", false, 3},
			"descending":      {in(clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend), clientv3.WithLimit(2)), "e,d", true, 5},
			"by value":        {in(clientv3.WithSort(clientv3.SortByValue, clientv3.SortDescend), clientv3.WithLimit(2)), "e,c", true, 5},
			"by value, none":  {in(clientv3.WithSort(clientv3.SortByValue, clientv3.SortNone)), "d,a,b,c,e", false, 5},
			"filter":          {in(clientv3.WithMinModRev(past+1), clientv3.WithLimit(2)), "d,e", false, 5},
			"filtered limit":  {in(clientv3.WithMaxCreateRev(past), clientv3.WithLimit(2)), "a,b", true, 5},
			"nothing matches": {in(clientv3.WithMinCreateRev(current)), "", false, 5},
		} {
			got := f.get(prefix, c.options...)
			keys := strings.ReplaceAll(keysOf(got.Kvs), prefix, "")
			if keys != c.keys || got.More != c.more || got.Count != c.count || got.Header.Revision != current {
				f.Errorf("%s: %s, more %v, count %d, revision %d; want %+v at %d", name, keys, got.More, got.Count,
					got.Header.Revision, c, current)
			}
		}
		if got := f.get(prefix+"c", clientv3.WithRange("/registry/pods0")); keysOf(got.Kvs) != prefix+"c,"+prefix+"d,"+prefix+"e" ||
			got.Count != 3 {
			f.Errorf("second page: %v", got)
		}
		// Several resources, in the order of the keys.
		want := "/registry/pods,/registry/pods/a,/registry/pods/b,/registry/pods/c,/registry/pods/d,/registry/pods/e," +
			"/registry/podtemplates/a,/zzz"
		if got := f.get("\x00", clientv3.WithFromKey()); keysOf(got.Kvs) != want || got.Count != 8 {
			f.Errorf("all keys: %s", keysOf(got.Kvs))
		}
		if got := f.get("/registry/", clientv3.WithPrefix(), clientv3.WithLimit(3)); got.Count != 7 || !got.More ||
			keysOf(got.Kvs) != "/registry/pods,/registry/pods/a,/registry/pods/b" {
			f.Errorf("page of several resources: %v", got)
		}
		if got := f.get("c", clientv3.WithRange("a")); len(got.Kvs) != 0 || got.Count != 0 {
			f.Errorf("reversed range: %v", got)
		}
		if kv := f.get(prefix+"a", clientv3.WithKeysOnly()).Kvs[0]; len(kv.Value) != 0 || kv.Version != 1 {
			f.Errorf("keys only: %v", kv)
		}
		if _, err := f.Get(f.Context(), "a", clientv3.WithRev(current+1)); !errors.Is(err, rpctypes.ErrFutureRev) {
			f.Errorf("future revision: %v", err)
		}
		if _, err := f.Get(f.Context(), ""); !errors.Is(err, rpctypes.ErrEmptyKey) {
			f.Errorf("empty key: %v", err)
		}
	})
}

func TestKV_RangeStream(t *testing.T) {
	onEach(t, func(f fixture) {
		for i := range 35 {
			f.put(fmt.Sprintf("/registry/pods/%03d", i), "v")
		}
		current := f.put("other", "")
		for name, c := range map[string]struct {
			options     []clientv3.OpOption
			keys, count int64
			more        bool
		}{
			"all":   {nil, 35, 35, false},
			"limit": {[]clientv3.OpOption{clientv3.WithLimit(12)}, 12, 35, true},
			"count": {[]clientv3.OpOption{clientv3.WithCountOnly()}, 0, 35, false},
			"past":  {[]clientv3.OpOption{clientv3.WithRev(11)}, 10, 10, false},
		} {
			stream, err := f.GetStream(f.Context(), "/registry/pods/", append(c.options, clientv3.WithPrefix())...)
			if err != nil {
				f.Fatal(err)
			}
			got, err := clientv3.GetStreamToGetResponse(stream)
			if err != nil {
				f.Fatal(err)
			}
			if int64(len(got.Kvs)) != c.keys || got.Count != c.count || got.More != c.more || got.Header.Revision != current {
				f.Errorf("%s: %d keys, count %d, more %v, %v", name, len(got.Kvs), got.Count, got.More, got.Header)
			}
		}
	})
}

func TestKV_Txn(t *testing.T) {
	onEach(t, func(f fixture) {
		txn := func(compare clientv3.Cmp, then, otherwise clientv3.Op) *clientv3.TxnResponse {
			f.Helper()
			response, err := f.Txn(f.Context()).If(compare).Then(then).Else(otherwise).Commit()
			if err != nil {
				f.Fatal(err)
			}
			return response
		}
		key := "/registry/leases/a"
		modIs := func(revision int64) clientv3.Cmp { return clientv3.Compare(clientv3.ModRevision(key), "=", revision) }
		created := txn(modIs(0), clientv3.OpPut(key, "1"), clientv3.OpGet(key))
		if !created.Succeeded || created.Header.Revision != 2 || created.Responses[0].GetResponsePut().Header.Revision != 2 {
			f.Errorf("create: %v", created)
		}
		exists := txn(modIs(0), clientv3.OpPut(key, "2"), clientv3.OpGet(key))
		if exists.Succeeded || exists.Header.Revision != 2 || len(exists.Responses[0].GetResponseRange().Kvs) != 1 {
			f.Errorf("create of a key that exists: %v", exists)
		}
		updated := txn(modIs(2), clientv3.OpPut(key, "3"), clientv3.OpGet(key))
		if kv := f.get(key).Kvs[0]; !updated.Succeeded || kv.Version != 2 || kv.ModRevision != 3 || string(kv.Value) != "3" {
			f.Errorf("update: %v, %v", updated, kv)
		}
		if deleted := txn(modIs(2), clientv3.OpDelete(key), clientv3.OpGet(key)); deleted.Succeeded ||
			string(deleted.Responses[0].GetResponseRange().Kvs[0].Value) != "3" {
			f.Errorf("delete of an old state: %v", deleted)
		}
		if deleted := txn(modIs(3), clientv3.OpDelete(key), clientv3.OpGet(key)); !deleted.Succeeded ||
			deleted.Responses[0].GetResponseDeleteRange().Deleted != 1 {
			f.Errorf("delete: %v", deleted)
		}
		// kube-apiserver's compaction.
		version := func(n int64) clientv3.Cmp { return clientv3.Compare(clientv3.Version("compact_rev_key"), "=", n) }
		for n := range int64(3) {
			done := txn(version(n), clientv3.OpPut("compact_rev_key", fmt.Sprint(n)), clientv3.OpGet("compact_rev_key"))
			if !done.Succeeded {
				f.Errorf("compact_rev_key at version %d: %v", n, done)
			}
		}
		// No Else.
		failed, err := f.Txn(f.Context()).If(modIs(99)).Then(clientv3.OpPut(key, "x")).Commit()
		if err != nil || failed.Succeeded || len(failed.Responses) != 0 {
			f.Errorf("no Else: %v, %v", failed, err)
		}
		// A value of a key that does not exist is neither equal nor unequal.
		for _, operator := range []string{"=", "!=", "<", ">"} {
			if done := txn(clientv3.Compare(clientv3.Value("none"), operator, ""), clientv3.OpGet("a"), clientv3.OpGet("b")); done.Succeeded {
				f.Errorf("value %s of a missing key holds", operator)
			}
		}
	})
}

func TestKV_TxnReadsItsWrite(t *testing.T) {
	onEach(t, func(f fixture) {
		f.put("other", "1")
		done, err := f.Txn(f.Context()).Then(clientv3.OpGet("a"), clientv3.OpPut("a", "1"), clientv3.OpGet("a"),
			clientv3.OpGet("other"), clientv3.OpTxn(
				[]clientv3.Cmp{clientv3.Compare(clientv3.Version("a"), "=", 1)},
				[]clientv3.Op{clientv3.OpGet("then")}, []clientv3.Op{clientv3.OpGet("a")})).Commit()
		if err != nil {
			f.Fatal(err)
		}
		r := done.Responses
		nested := r[4].GetResponseTxn()
		if len(r[0].GetResponseRange().Kvs) != 0 || r[0].GetResponseRange().Header.Revision != 2 ||
			len(r[2].GetResponseRange().Kvs) != 1 || r[2].GetResponseRange().Header.Revision != 3 ||
			len(r[3].GetResponseRange().Kvs) != 1 ||
			nested.Succeeded || len(nested.Responses[0].GetResponseRange().Kvs) != 1 || nested.Header.Revision != 0 {
			f.Errorf("range, put, range, nested: %v", done)
		}
	})
}

func TestKV_TxnRefused(t *testing.T) {
	onEach(t, func(f fixture) {
		f.put("a", "1")
		f.put("b", "1")
		before := f.get("a").Header.Revision
		many := make([]clientv3.Op, 129)
		for i := range many {
			many[i] = clientv3.OpGet("a")
		}
		for name, c := range map[string]struct {
			then []clientv3.Op
			text string
		}{
			"key put twice":        {[]clientv3.Op{clientv3.OpPut("x", ""), clientv3.OpPut("x", "")}, "etcdserver: duplicate key given in txn request"},
			"delete and put":       {[]clientv3.Op{clientv3.OpDelete("x"), clientv3.OpPut("x", "")}, "etcdserver: duplicate key given in txn request"},
			"put in deleted range": {[]clientv3.Op{clientv3.OpPut("x", ""), clientv3.OpDelete("w", clientv3.WithRange("z"))}, "etcdserver: duplicate key given in txn request"},
			"too many":             {many, "etcdserver: too many operations in txn request"},
			"empty key":            {[]clientv3.Op{clientv3.OpPut("", "")}, "etcdserver: key is not provided"},
			"missing key":          {[]clientv3.Op{clientv3.OpPut("none", "", clientv3.WithIgnoreValue())}, "etcdserver: key not found"},
			"future revision":      {[]clientv3.Op{clientv3.OpPut("x", ""), clientv3.OpGet("x", clientv3.WithRev(before+9))}, "etcdserver: mvcc: required revision is a future revision"},
			"two keys":             {[]clientv3.Op{clientv3.OpPut("x", ""), clientv3.OpPut("y", "")}, "byre: to write more than one key in one request is not supported"},
			"range of two keys":    {[]clientv3.Op{clientv3.OpDelete("a", clientv3.WithRange("c"))}, "byre: to write more than one key in one request is not supported"},
			"unknown lease":        {[]clientv3.Op{clientv3.OpPut("x", "", clientv3.WithLease(12345))}, "etcdserver: requested lease not found"},
		} {
			_, err := f.Txn(f.Context()).Then(c.then...).Commit()
			if err == nil || !strings.Contains(err.Error(), c.text) {
				f.Errorf("%s: %v, want %q", name, err, c.text)
			}
			// The branch that does not run is checked too, as far as its form goes.
			if strings.HasPrefix(name, "key") || name == "too many" {
				if _, err := f.Txn(f.Context()).Else(c.then...).Commit(); err == nil {
					f.Errorf("%s in Else: accepted", name)
				}
			}
		}
		_, err := f.Txn(f.Context()).If(clientv3.Compare(clientv3.Version("b"), "=", 1)).Then(clientv3.OpPut("a", "2")).Commit()
		if status.Code(err) != codes.Unimplemented {
			f.Errorf("comparison with another key: %v", err)
		}
		if after := f.get("a").Header.Revision; after != before {
			f.Errorf("revision %d, want %d: something was done", after, before)
		}
	})
}

func TestKV_Limits(t *testing.T) {
	onEach(t, func(f fixture) {
		f.put("12345678", strings.Repeat("x", 1_572_832))
		if _, err := f.Put(f.Context(), "12345678", strings.Repeat("x", 1_572_833)); !errors.Is(err, rpctypes.ErrRequestTooLarge) {
			f.Errorf("one byte more: %v", err)
		}
		if _, err := f.Put(f.Context(), strings.Repeat("k", 2000), ""); status.Code(err) != codes.InvalidArgument {
			f.Errorf("long key: %v", err)
		}
	})
}

func TestKV_Compact(t *testing.T) {
	onEach(t, func(f fixture) {
		first := f.put("a", "1")
		second := f.put("a", "2")
		f.put("a", "3")
		if _, err := f.Compact(f.Context(), 0); err != nil {
			f.Errorf("first compaction at 0: %v", err)
		}
		if _, err := f.Compact(f.Context(), 0); !errors.Is(err, rpctypes.ErrCompacted) {
			f.Errorf("second compaction at 0: %v", err)
		}
		if _, err := f.Compact(f.Context(), second); err != nil {
			f.Fatal(err)
		}
		if _, err := f.Compact(f.Context(), second); !errors.Is(err, rpctypes.ErrCompacted) {
			f.Errorf("same compaction: %v", err)
		}
		if _, err := f.Compact(f.Context(), 1000); !errors.Is(err, rpctypes.ErrFutureRev) {
			f.Errorf("compaction in the future: %v", err)
		}
		if _, err := f.Get(f.Context(), "a", clientv3.WithRev(first)); !errors.Is(err, rpctypes.ErrCompacted) {
			f.Errorf("below the compaction: %v", err)
		}
		if kv := f.get("a", clientv3.WithRev(second)).Kvs[0]; string(kv.Value) != "2" {
			f.Errorf("at the compaction: %v", kv)
		}
	})
}
