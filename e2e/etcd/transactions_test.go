package etcd

import (
	"fmt"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// ops are the operations of a branch.
type ops = []any

func keysTwice(s *session) {
	s.seed("b")
	s.rebase()
	s.txn("put, put", txn{then: ops{put("a", "1"), put("a", "2")}})
	s.txn("put, delete a range over it", txn{then: ops{put("a", "1"), del("a", "c")}})
	s.txn("delete a range, put in it", txn{then: ops{del("a", "c"), put("a", "1")}})
	s.txn("delete, put", txn{then: ops{del("a"), put("a", "1")}})
	s.txn("put, delete", txn{then: ops{put("a", "1"), del("a")}})
	s.txn("twice in the branch that does not run", txn{when: version("a", "=", 0), then: ops{put("a", "1")},
		otherwise: ops{put("a", "1"), put("a", "2")}})
	s.txn("outside and in a nested one", txn{then: ops{put("a", "1"), txn{then: ops{put("a", "2")}}}})
	s.txn("in two nested ones", txn{then: ops{txn{then: ops{put("a", "1")}}, txn{then: ops{put("a", "2")}}}})
	s.txn("an empty operation", txn{then: ops{nil}})
	s.get("nothing is done", get("\x00", "\x00"))
	s.txn("an empty transaction", txn{})
	s.txn("two range deletes over each other", txn{then: ops{del("a", "c"), del("b", "d")}})
	s.clear()
	s.rebase()
	s.txn("once in each branch", txn{then: ops{put("a", "1")}, otherwise: ops{put("a", "2")}})
	s.txn("once in each branch of a nested one", txn{then: ops{txn{when: version("a", "=", 0),
		then: ops{put("a", "3")}, otherwise: ops{put("a", "4")}}}})
	s.get("what is done", get("\x00", "\x00"))
}

func severalWrites(s *session) {
	s.seed("b")
	w := s.watch()
	w.create("watch", &pb.WatchCreateRequest{Key: []byte("\x00"), RangeEnd: []byte("\x00"), PrevKv: true})
	s.rebase()
	if s.txn("three puts", txn{then: ops{put("c", "1"), put("a", "2"), put("b", "3")}}) {
		s.get("three puts: keys", get("\x00", "\x00"))
		w.borders("three puts: responses", 3)
		w.create("three puts: history watch", &pb.WatchCreateRequest{Key: []byte("a"), RangeEnd: []byte("z"),
			StartRevision: s.base + 1})
		w.events("three puts: history", 3)
	}
	s.rebase()
	if s.txn("delete, put, delete a range", txn{then: ops{del("b"), put("z", "1"), del("a", "b\x00")}}) {
		w.events("delete, put, delete a range: events", 5)
	}
	s.rebase()
	s.txn("put of one key", txn{then: ops{put("e", "1")}})
	s.clear()
	s.seed("r3", "r1", "r2")
	s.rebase()
	response, err := s.kv.DeleteRange(s.t.Context(), del("r1", "r4"))
	if err != nil {
		s.note("range delete", "%s", errorText(err))
		return
	}
	s.note("range delete", "%d", response.Deleted)
	history := s.watch()
	history.create("range delete: history watch", &pb.WatchCreateRequest{Key: []byte("r"), RangeEnd: []byte("s"),
		StartRevision: s.base + 1})
	var keys []string
	for _, m := range history.responses(3) {
		for _, e := range m.GetEvents() {
			keys = append(keys, e.Type.String()+" "+string(e.Kv.Key))
		}
	}
	s.note("range delete: events", "%s", strings.Join(keys, ", "))
}

func readsInTransactions(s *session) {
	s.seed("a")
	s.rebase()
	s.txn("only a range", txn{then: ops{get("a"), get("x")}})
	s.txn("put, range", txn{then: ops{put("k", "1"), get("k")}})
	s.txn("range, put, range", txn{then: ops{get("n"), put("n", "1"), get("n")}})
	s.txn("delete, range", txn{then: ops{del("n"), get("n")}})
	s.txn("a range at a future revision", txn{then: ops{put("f", "1"),
		with(get("a"), func(r *pb.RangeRequest) { r.Revision = s.base + 1000 })}})
	s.txn("a range of the future alone",
		txn{then: ops{with(get("a"), func(r *pb.RangeRequest) { r.Revision = s.base + 1000 })}})
	s.txn("a range of the past", txn{then: ops{with(get("k"), func(r *pb.RangeRequest) { r.Revision = s.base })}})
	s.get("the put before it is not done", get("f"))
	s.txn("false without Else", txn{when: version("a", "=", 7), then: ops{put("a", "1")}})
	s.txn("false with a range in Else", txn{when: version("a", "=", 7),
		then: ops{put("a", "1")}, otherwise: ops{get("a")}})
	s.txn("a nested one that reads", txn{then: ops{txn{then: ops{get("a")}}}})
	s.rebase()
	s.txn("a nested compare sees the state before", txn{then: ops{put("e", "1"), txn{when: version("e", "=", 1),
		then: ops{get("a")}, otherwise: ops{get("x")}}}})
	s.rebase()
	s.compact("compact", s.base)
	s.txn("a range at a compacted revision", txn{then: ops{put("g", "1"),
		with(get("a"), func(r *pb.RangeRequest) { r.Revision = s.base - 1 })}})
	s.get("the put before that is not done", get("g"))
}

func compares(s *session) {
	s.put("an empty value", put("empty", ""))
	s.put("a value", put("k", "v"))
	s.put("once more", put("k", "w"))
	is := func(question string, c []*pb.Compare) { s.txn(question, txn{when: c}) }
	at := func(offset int64) int64 { return s.base + offset }
	is("missing: version = 0", version("x", "=", 0))
	is("missing: version < 1", version("x", "<", 1))
	is("missing: version > 0", version("x", ">", 0))
	is("missing: mod = 0", mod("x", "=", 0))
	is("missing: mod != 5", mod("x", "!=", 5))
	is("missing: create = 0", create("x", "=", 0))
	is("missing: lease = 0", leaseIs("x", "=", 0))
	is("missing: value = empty", value("x", "=", ""))
	is("missing: value != x", value("x", "!=", "x"))
	is("missing: value < x", value("x", "<", "x"))
	is("empty: value = empty", value("empty", "=", ""))
	for _, result := range []string{"=", "!=", "<", ">", "unknown"} {
		is("present: version "+result+" 2", version("k", result, 2))
		is("present: mod "+result+" its own", mod("k", result, at(3)))
		is("present: create "+result+" its own", create("k", result, at(2)))
		is("present: create "+result+" its mod", create("k", result, at(3)))
		is("present: lease "+result+" 0", leaseIs("k", result, 0))
		is("present: value "+result+" v", value("k", result, "v"))
		is("present: value "+result+" w", value("k", result, "w"))
	}
	is("no target union: version of a missing key", []*pb.Compare{{Key: []byte("x")}})
	is("no target union: version of a present key", []*pb.Compare{{Key: []byte("k")}})
	is("no target union: value", []*pb.Compare{{Key: []byte("empty"), Target: pb.Compare_VALUE}})
	is("unknown target", []*pb.Compare{{Key: []byte("k"), Target: 9}})
	is("target mod with the union of version", []*pb.Compare{{Key: []byte("k"), Target: pb.Compare_MOD,
		TargetUnion: &pb.Compare_Version{Version: at(3)}}})
	is("an empty key", version("", "=", 0))
	is("two that hold", append(version("k", "=", 2), mod("x", "=", 0)...))
	is("two of which one holds", append(version("k", "=", 2), mod("x", "=", 1)...))
}

func compareRanges(s *session) {
	s.seed("a", "b", "c")
	s.rebase()
	is := func(question string, c []*pb.Compare) { s.txn(question, txn{when: c}) }
	is("all hold", version("a", "=", 1, "d"))
	is("one does not", mod("a", "<", s.base, "d"))
	is("empty range: version = 0", version("m", "=", 0, "n"))
	is("empty range: version > 0", version("m", ">", 0, "n"))
	is("empty range: mod = 7", mod("m", "=", 7, "n"))
	is("empty range: value = empty", value("m", "=", "", "n"))
	is("reversed range: version = 0", version("d", "=", 0, "a"))
	is("from a key on", version("b", "=", 1, "\x00"))
	is("from a key on, one does not hold", mod("b", "=", s.base, "\x00"))
}

// keysOf are n operations on different keys.
func keysOf[R any](n int, prefix string, op func(key string) R) (all ops) {
	for i := range n {
		all = append(all, op(fmt.Sprintf("%s%03d", prefix, i)))
	}
	return all
}

func manyOperations(s *session) {
	one := func(key string) *pb.RangeRequest { return get(key) }
	aPut := func(key string) *pb.PutRequest { return put(key, "") }
	var compares []*pb.Compare
	for i := range 129 {
		compares = append(compares, version(fmt.Sprintf("c%03d", i), "=", 0)...)
	}
	brief := func(question string, x txn) { // the answer of 128 ranges says nothing
		response, err := s.kv.Txn(s.t.Context(), x.request())
		if err != nil {
			s.note(question, "%s", errorText(err))
		} else {
			s.note(question, "%v, %d responses", response.Succeeded, len(response.Responses))
		}
	}
	brief("128 compares, 128 in Then, 128 in Else", txn{compares[:128], keysOf(128, "a", one), keysOf(128, "b", one)})
	brief("129 compares", txn{when: compares})
	brief("129 in Then", txn{then: keysOf(129, "a", one)})
	brief("129 in Else", txn{otherwise: keysOf(129, "a", one)})
	nested := func(depth int) txn {
		x := txn{then: ops{put("deep", "")}}
		for range depth {
			x = txn{then: ops{x}}
		}
		return x
	}
	brief("nested 126 times", nested(126))
	brief("nested 127 times", nested(127))
	brief("nested 128 times", nested(128))
	brief("127 ranges and a nested one of 1", txn{then: append(keysOf(127, "a", one), txn{then: keysOf(1, "b", one)})})
	brief("127 ranges and a nested one of 100", txn{then: append(keysOf(127, "a", one), txn{then: keysOf(100, "b", one)})})
	brief("28 ranges and a nested one of 100", txn{then: append(keysOf(27, "a", one), txn{then: keysOf(100, "b", one)})})
	brief("127 puts and a nested one of 100", txn{then: append(keysOf(127, "a", aPut), txn{then: keysOf(100, "b", one)})})
	brief("128 puts", txn{then: keysOf(128, "p", aPut)})
}

func ignoring(s *session) {
	must(s, s.lease.LeaseGrant, &pb.LeaseGrantRequest{ID: 701, TTL: 600})
	s.seed("k")
	must(s, s.kv.Put, with(put("leased", "v"), func(r *pb.PutRequest) { r.Lease = 701 }))
	s.rebase()
	value := func(key, v string) *pb.PutRequest {
		return with(put(key, v), func(r *pb.PutRequest) { r.IgnoreValue, r.PrevKv = true, true })
	}
	lease := func(key string, id int64) *pb.PutRequest {
		return with(put(key, "new"), func(r *pb.PutRequest) { r.IgnoreLease, r.PrevKv, r.Lease = true, true, id })
	}
	s.put("ignore_value, missing", value("x", ""))
	s.put("ignore_value, with a value", value("k", "v"))
	s.put("ignore_value, present", value("k", ""))
	s.get("ignore_value: the key", get("k"))
	s.put("ignore_value drops the lease", value("leased", ""))
	s.get("ignore_value: the leased key", get("leased"))
	must(s, s.kv.Put, with(put("leased", "v"), func(r *pb.PutRequest) { r.Lease = 701 }))
	s.put("ignore_lease, missing", lease("x", 0))
	s.put("ignore_lease, with a lease", lease("leased", 701))
	s.put("ignore_lease, present", lease("leased", 0))
	s.get("ignore_lease: the key", get("leased"))
	s.put("both, present", with(put("leased", ""), func(r *pb.PutRequest) { r.IgnoreLease, r.IgnoreValue = true, true }))
	s.get("both: the key", get("leased"))
	s.put("prev_kv, missing", with(put("new", "1"), func(r *pb.PutRequest) { r.PrevKv = true }))
	s.put("prev_kv, present", with(put("new", "2"), func(r *pb.PutRequest) { r.PrevKv = true }))
	s.txn("ignore_value of a missing key alone", txn{then: ops{value("x", "")}})
	s.txn("ignore_value of a missing key after a put", txn{then: ops{put("k2", "1"), value("x", "")}})
	s.get("the put before it is not done", get("k2"))
}

func keys(s *session) {
	s.put("put an empty key", put("", "v"))
	s.get("get an empty key", get(""))
	s.get("get from an empty key on", get("", "\x00"))
	s.get("get an empty key to z", get("", "z"))
	s.del("delete an empty key", del(""))
	s.txn("put an empty key in a transaction", txn{then: ops{put("", "v")}})
	s.txn("get an empty key in a transaction", txn{then: ops{get("")}})
	s.txn("delete an empty key in a transaction", txn{then: ops{del("")}})
	for _, key := range []string{"b", "B", "a\xffz", "\x00", "\xff\xff\xff", "ä", "a", "a/b", "a-b"} {
		s.put(fmt.Sprintf("put %q", key), put(key, "v"))
	}
	s.get("get everything", get("\x00", "\x00"))
	s.get("get a reversed range", get("c", "a"))
	s.get("get an empty range", get("b", "b"))
	s.get("get a to b", get("a", "b"))
	s.get("get from the last key on", get("\xff\xff\xff", "\x00"))
	s.del("delete a reversed range", del("c", "a"))
	s.del("delete an empty range", del("b", "b"))
	s.rebase()
	response, err := s.kv.DeleteRange(s.t.Context(),
		with(del("\x00", "\x00"), func(r *pb.DeleteRangeRequest) { r.PrevKv = true }))
	if err != nil {
		s.note("delete everything", "%s", errorText(err))
		return
	}
	var names []string
	for _, kv := range response.PrevKvs {
		names = append(names, quote(kv.Key))
	}
	s.note("delete everything", "%d: %s, %d left", response.Deleted, strings.Join(names, " "),
		must(s, s.kv.Range, get("\x00", "\x00")).Count)
}

func sizes(s *session) {
	value := func(n int) string { return strings.Repeat("v", n) }
	s.put("1,572,800 bytes", put("12345678", value(1_572_800))) // The bound counts the bytes of a request's id too.
	s.put("1.5 MiB", put("12345678", value(3<<19)))
	s.put("1.5 MiB + 1", put("12345678", value(3<<19+1)))
	s.put("2 MiB", put("12345678", value(2<<20)))
	s.put("3 MiB", put("12345678", value(3<<20)))
	s.put("5 MiB", put("12345678", value(5<<20)))
	s.txn("two of 800 KiB", txn{then: ops{put("a", value(800<<10)), put("b", value(800<<10))}})
	s.txn("two of 800 KiB, each in a branch",
		txn{then: ops{put("a", value(800<<10))}, otherwise: ops{put("a", value(800<<10))}})
	s.put("a key of 1 KiB", put(value(1<<10), "v"))
	s.put("a key of 1 KiB + 1", put(value(1<<10+1), "v"))
	s.put("a key of 1 MiB", put(value(1<<20), "v"))
}

func createsAgain(s *session) {
	w := s.watch()
	w.create("watch", &pb.WatchCreateRequest{Key: []byte("k"), RangeEnd: []byte("l"), PrevKv: true})
	s.put("put", put("k", "1"))
	s.put("put the same value", put("k", "1"))
	s.get("after two puts", get("k"))
	s.del("delete", with(del("k"), func(r *pb.DeleteRangeRequest) { r.PrevKv = true }))
	s.get("after the delete", get("k"))
	s.del("delete a missing key", with(del("k"), func(r *pb.DeleteRangeRequest) { r.PrevKv = true }))
	s.put("put again", put("k", "2"))
	s.get("after the next put", get("k"))
	s.txn("create of a present key", txn{when: mod("k", "=", 0), then: ops{put("k", "3")}})
	s.txn("update by mod revision", txn{when: mod("k", "=", s.base+4), then: ops{put("k", "4")}, otherwise: ops{get("k")}})
	s.txn("update by an old mod revision", txn{when: mod("k", "=", s.base+4), then: ops{put("k", "5")},
		otherwise: ops{get("k")}})
	s.txn("delete by mod revision", txn{when: mod("k", "=", s.base+5), then: ops{del("k")}, otherwise: ops{get("k")}})
	s.txn("create by mod revision", txn{when: mod("k", "=", 0), then: ops{put("k", "6")}})
	w.events("events", 7)
}

func deletesOfNothing(s *session) {
	s.txn("delete of nothing", txn{then: ops{del("x")}})
	s.txn("delete of a range of nothing", txn{then: ops{del("x", "z")}})
	s.txn("delete of nothing in Else", txn{when: version("x", "=", 1), otherwise: ops{del("x")}})
	s.txn("delete of nothing, put of another key", txn{then: ops{del("x"), put("y", "1")}})
	s.rebase()
	s.seed("a")
	s.txn("delete of a range of one",
		txn{then: ops{with(del("a", "b"), func(r *pb.DeleteRangeRequest) { r.PrevKv = true })}})
}
