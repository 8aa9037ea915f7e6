package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// ranged is a Range of a..z with changes.
func ranged(change func(*pb.RangeRequest)) *pb.RangeRequest { return with(get("a", "z"), change) }

func limits(s *session) {
	s.seed("a", "b", "c", "d", "e")
	limit := func(n int64) *pb.RangeRequest { return ranged(func(r *pb.RangeRequest) { r.Limit = n }) }
	for _, n := range []int64{2, 4, 5, 9, -1} {
		s.get(fmt.Sprintf("limit %d of 5", n), limit(n))
	}
	s.get("limit and count_only", ranged(func(r *pb.RangeRequest) { r.Limit, r.CountOnly = 2, true }))
	s.get("count_only at a past revision", ranged(func(r *pb.RangeRequest) { r.CountOnly, r.Revision = true, s.base+3 }))
	s.get("second page", with(get("c", "z"), func(r *pb.RangeRequest) { r.Limit = 2 }))
	s.get("a page of the past", ranged(func(r *pb.RangeRequest) { r.Limit, r.Revision = 2, s.base+3 }))
	s.get("second page of the past", with(get("c", "z"), func(r *pb.RangeRequest) { r.Limit, r.Revision = 2, s.base+4 }))
	s.get("one key with a limit", with(get("a"), func(r *pb.RangeRequest) { r.Limit = 1 }))
	s.get("a missing key with a limit", with(get("x"), func(r *pb.RangeRequest) { r.Limit = 1 }))
	s.get("count of one key", with(get("a"), func(r *pb.RangeRequest) { r.CountOnly = true }))
}

// names are the keys of an answer, and what it says beside them.
func (s *session) names(question string, r *pb.RangeRequest) {
	s.t.Helper()
	response, err := s.kv.Range(s.t.Context(), r)
	if err != nil {
		s.note(question, "%s", errorText(err))
		return
	}
	var all []string
	for _, kv := range response.Kvs {
		all = append(all, string(kv.Key))
	}
	s.note(question, "%s %s, count %d, more %v", s.text(response.Header), strings.Join(all, ","), response.Count,
		response.More)
}

func sorting(s *session) {
	for _, kv := range []string{"c2", "a3", "e1", "b5", "d4"} {
		must(s, s.kv.Put, put(kv[:1], kv[1:]))
	}
	must(s, s.kv.Put, put("a", "3"))
	for _, target := range []pb.RangeRequest_SortTarget{pb.RangeRequest_KEY, pb.RangeRequest_VERSION,
		pb.RangeRequest_CREATE,
		pb.RangeRequest_MOD, pb.RangeRequest_VALUE, 9} {
		for _, order := range []pb.RangeRequest_SortOrder{pb.RangeRequest_NONE, pb.RangeRequest_ASCEND,
			pb.RangeRequest_DESCEND, 9} {
			s.names(fmt.Sprintf("%v %v", target, order), ranged(func(r *pb.RangeRequest) {
				r.SortTarget, r.SortOrder = target, order
			}))
			s.names(fmt.Sprintf("%v %v limit 2", target, order),
				ranged(func(r *pb.RangeRequest) { r.SortTarget, r.SortOrder, r.Limit = target, order, 2 }))
		}
	}
	s.get("keys_only by VALUE", ranged(func(r *pb.RangeRequest) {
		r.SortTarget, r.SortOrder, r.KeysOnly = pb.RangeRequest_VALUE, pb.RangeRequest_ASCEND, true
	}))
	s.names("in the past", ranged(func(r *pb.RangeRequest) {
		r.SortTarget, r.SortOrder, r.Revision = pb.RangeRequest_VALUE, pb.RangeRequest_DESCEND, s.base+3
	}))
}

func filters(s *session) {
	s.seed("a", "b", "c", "d", "e", "b")
	filter := func(question string, change func(*pb.RangeRequest)) { s.names(question, ranged(change)) }
	filter("min_mod 3", func(r *pb.RangeRequest) { r.MinModRevision = s.base + 3 })
	filter("max_mod 3", func(r *pb.RangeRequest) { r.MaxModRevision = s.base + 3 })
	filter("min_create 3", func(r *pb.RangeRequest) { r.MinCreateRevision = s.base + 3 })
	filter("max_create 3", func(r *pb.RangeRequest) { r.MaxCreateRevision = s.base + 3 })
	for limit := range int64(4) {
		filter(fmt.Sprintf("min_mod 4, max_mod 6, limit %d", limit), func(r *pb.RangeRequest) {
			r.MinModRevision, r.MaxModRevision, r.Limit = s.base+4, s.base+6, limit
		})
	}
	filter("none matches", func(r *pb.RangeRequest) { r.MinModRevision = s.base + 100 })
	filter("count_only", func(r *pb.RangeRequest) { r.MinModRevision, r.CountOnly = s.base+100, true })
	filter("with a sort", func(r *pb.RangeRequest) {
		r.MinModRevision, r.SortOrder, r.Limit = s.base+3, pb.RangeRequest_DESCEND, 2
	})
}

func revisions(s *session) {
	s.seed("a", "b", "a", "c")
	must(s, s.kv.DeleteRange, del("b"))
	for offset := range int64(6) {
		s.get(fmt.Sprintf("at +%d", offset), ranged(func(r *pb.RangeRequest) { r.Revision = s.base + offset }))
	}
	s.get("above the current", ranged(func(r *pb.RangeRequest) { r.Revision = s.base + 6 }))
	s.get("-1", ranged(func(r *pb.RangeRequest) { r.Revision = -1 }))
	s.compact("compact", s.base+3)
	s.get("at the compacted", ranged(func(r *pb.RangeRequest) { r.Revision = s.base + 3 }))
	s.get("below", ranged(func(r *pb.RangeRequest) { r.Revision = s.base + 2 }))
	s.get("below, count_only", ranged(func(r *pb.RangeRequest) { r.Revision, r.CountOnly = s.base+2, true }))
	s.get("below, serializable", ranged(func(r *pb.RangeRequest) { r.Revision, r.Serializable = s.base+2, true }))
	s.get("below, a missing key", with(get("x"), func(r *pb.RangeRequest) { r.Revision = s.base + 2 }))
	s.txn("below, in a transaction", txn{then: ops{ranged(func(r *pb.RangeRequest) { r.Revision = s.base + 2 })}})
	s.get("below, a wrong sort", ranged(func(r *pb.RangeRequest) { r.Revision, r.SortOrder = s.base+2, 9 }))
}

func keysOnly(s *session) {
	must(s, s.lease.LeaseGrant, &pb.LeaseGrantRequest{ID: 1601, TTL: 600})
	must(s, s.kv.Put, with(put("k", "v"), func(r *pb.PutRequest) { r.Lease = 1601 }))
	keysOnly := func(r *pb.RangeRequest) { r.KeysOnly = true }
	s.get("with the value", get("k"))
	s.get("range", ranged(keysOnly))
	s.get("one key", with(get("k"), keysOnly))
	s.txn("transaction", txn{then: ops{ranged(keysOnly)}})
	s.stream("stream", ranged(keysOnly))
	s.get("by VALUE", ranged(func(r *pb.RangeRequest) {
		r.KeysOnly, r.SortTarget, r.SortOrder = true, pb.RangeRequest_VALUE, pb.RangeRequest_ASCEND
	}))
	s.get("by MOD", ranged(func(r *pb.RangeRequest) {
		r.KeysOnly, r.SortTarget, r.SortOrder = true, pb.RangeRequest_MOD, pb.RangeRequest_ASCEND
	}))
}

func serializable(s *session) {
	s.seed("a", "b")
	s.get("now", ranged(func(r *pb.RangeRequest) { r.Serializable = true }))
	s.get("in the past", ranged(func(r *pb.RangeRequest) { r.Serializable, r.Revision = true, s.base+1 }))
	s.put("put", put("a", "2"))
	s.del("delete", del("a"))
	s.txn("transaction", txn{then: ops{get("b")}})
	s.compact("compact", s.base+2)
}

// stream asks RangeStream and notes for each message all but the values, or the keys where they are many.
func (s *session) stream(question string, r *pb.RangeRequest) {
	s.t.Helper()
	s.streamMeanwhile(question, s.client, r, nil)
}

func (s *session) streamMeanwhile(question string, c *client, r *pb.RangeRequest, meanwhile func()) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	stream, err := c.kv.RangeStream(ctx, r)
	var lines []string
	for err == nil {
		var m *pb.RangeStreamResponse
		if m, err = stream.Recv(); err != nil {
			break
		}
		if proto.Size(m) < 4096 {
			lines = append(lines, s.text(m.RangeResponse))
		} else {
			n := len(m.RangeResponse.Kvs)
			m.RangeResponse.Kvs = nil
			lines = append(lines, fmt.Sprintf("%d keys %s", n, s.text(m.RangeResponse)))
		}
		if meanwhile != nil {
			meanwhile()
			meanwhile = nil
		}
	}
	if !errors.Is(err, io.EOF) {
		lines = append(lines, errorText(err))
	}
	s.note(question, "%s", strings.Join(lines, "\n"))
}

// fill puts n keys in any order, several at a time.
func (s *session) fill(prefix string, n, size int) {
	s.t.Helper()
	value := strings.Repeat("v", size)
	var group errgroup.Group
	group.SetLimit(64)
	for i := range n {
		group.Go(func() error {
			_, err := s.kv.Put(s.t.Context(), put(fmt.Sprintf("%s%05d", prefix, i), value))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		s.t.Fatal(err)
	}
}

func streams(s *session) {
	s.stream("empty", get("\x00", "\x00"))
	s.fill("k", 5_000, 1<<10)
	s.rebase()
	s.stream("5,000 of 1 KiB", get("k", "l"))
	s.seed("k00000", "one")
	s.stream("5,000 of 1 KiB, in the past", with(get("k", "l"), func(r *pb.RangeRequest) { r.Revision = s.base }))
	s.stream("a future revision", with(get("k", "l"), func(r *pb.RangeRequest) { r.Revision = s.base + 100 }))
	s.stream("an empty key", get(""))
	s.stream("one key", get("one"))
	s.fill("m", 40, 1<<20)
	s.rebase()
	s.stream("40 of 1 MiB", get("m", "n"))
	s.compact("compact", s.base)
	s.stream("a compacted revision", with(get("k", "l"), func(r *pb.RangeRequest) { r.Revision = s.base - 1 }))
	s.put("put", put("m00000", "short"))
	// The windows are too small for the whole stream, so that the server is not yet at its end.
	slow := dial(s.t, s.etcd, grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10))
	s.streamMeanwhile("after a write meanwhile", slow, get("m", "n"), func() {
		must(s, s.kv.Put, put("m00001", "short"))
		must(s, s.kv.Put, put("m00039", "short"))
	})
	s.rebase()
	// How many messages come before the error depends on the network's buffers.
	last := len(s.answers)
	s.streamMeanwhile("after a compaction meanwhile", slow, with(get("k", "n"),
		func(r *pb.RangeRequest) { r.Revision = s.base - 1 }),
		func() { must(s, s.kv.Compact, &pb.CompactionRequest{Revision: s.base}) })
	end := &s.answers[last].text
	*end = (*end)[strings.LastIndex(*end, "\n")+1:]
}

func streamOptions(s *session) {
	s.seed("c", "a", "b")
	stream := func(question string, change func(*pb.RangeRequest)) { s.stream(question, ranged(change)) }
	for _, target := range []pb.RangeRequest_SortTarget{pb.RangeRequest_KEY, pb.RangeRequest_VERSION,
		pb.RangeRequest_CREATE,
		pb.RangeRequest_MOD, pb.RangeRequest_VALUE} {
		for _, order := range []pb.RangeRequest_SortOrder{pb.RangeRequest_NONE, pb.RangeRequest_ASCEND,
			pb.RangeRequest_DESCEND} {
			stream(fmt.Sprintf("%v %v", target, order), func(r *pb.RangeRequest) { r.SortTarget, r.SortOrder = target, order })
		}
	}
	stream("unknown order", func(r *pb.RangeRequest) { r.SortOrder = 9 })
	stream("unknown target", func(r *pb.RangeRequest) { r.SortTarget = 9 })
	stream("min_mod", func(r *pb.RangeRequest) { r.MinModRevision = s.base })
	stream("max_mod", func(r *pb.RangeRequest) { r.MaxModRevision = s.base })
	stream("min_create", func(r *pb.RangeRequest) { r.MinCreateRevision = s.base })
	stream("max_create", func(r *pb.RangeRequest) { r.MaxCreateRevision = s.base })
	stream("limit 2", func(r *pb.RangeRequest) { r.Limit = 2 })
	stream("limit 3", func(r *pb.RangeRequest) { r.Limit = 3 })
	stream("limit -1", func(r *pb.RangeRequest) { r.Limit = -1 })
	stream("count_only", func(r *pb.RangeRequest) { r.CountOnly = true })
	stream("keys_only", func(r *pb.RangeRequest) { r.KeysOnly = true })
	stream("serializable", func(r *pb.RangeRequest) { r.Serializable = true })
	stream("in the past", func(r *pb.RangeRequest) { r.Revision = s.base + 2 })
}

func compactions(s *session) {
	s.seed("a", "b", "a")
	s.compact("a future revision", s.base+4)
	s.compact("below the current", s.base+2)
	s.compact("the same again", s.base+2)
	s.compact("below that", s.base+1)
	s.compact("0", 0)
	s.compact("-1", -1)
	s.compact("the current", s.base+3)
	s.get("the current stays", get("a", "c"))
	s.put("a put afterwards", put("a", "4"))
}

func compacted(s *session) {
	s.seed("x", "gone", "k")               // +1 +2 +3
	must(s, s.kv.DeleteRange, del("gone")) // +4
	s.seed("k", "y")                       // +5 +6
	must(s, s.kv.DeleteRange, del("k"))    // +7
	must(s, s.kv.DeleteRange, del("y"))    // +8
	other := s.watch()
	other.create("another watch", &pb.WatchCreateRequest{Key: []byte("z"), PrevKv: true})
	s.compact("compact +5", s.base+5)
	for _, offset := range []int64{4, 5, 6, 7} {
		s.get(fmt.Sprintf("range at +%d", offset), ranged(func(r *pb.RangeRequest) { r.Revision = s.base + offset }))
	}
	watch := func(from int64, n int) {
		w := s.watch()
		question := fmt.Sprintf("watch from +%d", from)
		w.create(question, &pb.WatchCreateRequest{Key: []byte("a"), RangeEnd: []byte("zz"), StartRevision: s.base + from,
			PrevKv: true})
		w.events(question+": events", n)
		w.cancel()
	}
	watch(5, 4)
	watch(6, 3)
	watch(7, 2)
	other.create("watch from +4", &pb.WatchCreateRequest{Key: []byte("a"), RangeEnd: []byte("zz"),
		StartRevision: s.base + 4})
	other.note("watch from +4: the end")
	s.compact("compact +7, a delete", s.base+7)
	watch(8, 1)
	w := s.watch()
	w.create("watch from +7 after it", &pb.WatchCreateRequest{Key: []byte("a"), RangeEnd: []byte("zz"),
		StartRevision: s.base + 7,
		PrevKv:        true})
	w.events("watch from +7 after it: events", 2)
	s.put("a put of what is gone", put("gone", "again"))
	s.get("it begins anew", get("gone"))
	s.put("z", put("z", "1"))
	other.events("the other watch lives", 1)
}

func physical(s *session) {
	s.seed("a", "a", "a")
	_, _ = ask(s, "physical", s.kv.Compact, &pb.CompactionRequest{Revision: s.base + 2, Physical: true})
	_, _ = ask(s, "logical", s.kv.Compact, &pb.CompactionRequest{Revision: s.base + 3})
}
