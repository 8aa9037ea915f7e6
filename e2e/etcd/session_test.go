package etcd

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"byre/e2e/servers"
)

// patience is how long an answer may take. Only an answer that never comes takes so long.
const patience = 20 * time.Second

// answer is what a server answers to one question of a line.
type answer struct{ question, text string }

// session asks one server the questions of one line.
type session struct {
	t    *testing.T
	etcd *servers.Etcd
	// restart stops the server by SIGTERM, starts it with the same data and connects to it.
	restart func()
	*client
	// base is the revision that noted ones are relative to.
	base    int64
	answers []answer
	// patience is how long the next answer may take: short once one has not come at all.
	patience time.Duration
}

// client calls a server.
type client struct {
	conn        *grpc.ClientConn
	kv          pb.KVClient
	watcher     pb.WatchClient
	lease       pb.LeaseClient
	cluster     pb.ClusterClient
	maintenance pb.MaintenanceClient
	auth        pb.AuthClient
}

// dial connects to a server. Messages may have any size.
func dial(t *testing.T, etcd *servers.Etcd, options ...grpc.DialOption) *client {
	t.Helper()
	conn, err := grpc.NewClient(strings.TrimPrefix(etcd.URL, "http://"), append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)),
	}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &client{conn, pb.NewKVClient(conn), pb.NewWatchClient(conn), pb.NewLeaseClient(conn), pb.NewClusterClient(conn),
		pb.NewMaintenanceClient(conn), pb.NewAuthClient(conn)}
}

// reset empties the store and starts counting revisions.
func (s *session) reset() {
	s.t.Helper()
	leases := must(s, s.lease.LeaseLeases, &pb.LeaseLeasesRequest{})
	for _, l := range leases.Leases {
		must(s, s.lease.LeaseRevoke, &pb.LeaseRevokeRequest{ID: l.ID})
	}
	s.clear()
	s.rebase()
}

// clear deletes all keys one by one.
func (s *session) clear() {
	s.t.Helper()
	all := must(s, s.kv.Range, with(get("\x00", "\x00"), func(r *pb.RangeRequest) { r.KeysOnly = true }))
	var group errgroup.Group
	group.SetLimit(64)
	for _, kv := range all.Kvs {
		group.Go(func() error {
			_, err := s.kv.DeleteRange(s.t.Context(), &pb.DeleteRangeRequest{Key: kv.Key})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		s.t.Fatal(err)
	}
}

// rebase has noted revisions count from the current one.
func (s *session) rebase() { s.base = s.current() }

// current is the server's revision.
func (s *session) current() int64 {
	s.t.Helper()
	return must(s, s.kv.Range, get("nothing")).Header.Revision
}

// note notes an answer. The questions of a line differ from each other.
func (s *session) note(question, format string, args ...any) {
	s.t.Helper()
	if slices.ContainsFunc(s.answers, func(a answer) bool { return a.question == question }) {
		s.t.Fatalf("%q is asked twice", question)
	}
	s.answers = append(s.answers, answer{question, fmt.Sprintf(format, args...)})
}

// ask calls a method and notes what it answers.
func ask[Q any, A proto.Message](
	s *session, question string, method func(context.Context, Q, ...grpc.CallOption) (A, error), request Q,
) (A, error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	response, err := method(ctx, request)
	if err != nil {
		s.note(question, "%s", errorText(err))
	} else {
		s.note(question, "%s", s.text(response))
	}
	return response, err
}

// must calls a method that prepares a question and cannot fail.
func must[Q any, A proto.Message](
	s *session, method func(context.Context, Q, ...grpc.CallOption) (A, error), request Q,
) A {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	response, err := method(ctx, request)
	if err != nil {
		s.t.Fatalf("%T: %v", request, err)
	}
	return response
}

func (s *session) put(question string, r *pb.PutRequest) {
	s.t.Helper()
	_, _ = ask(s, question, s.kv.Put, r)
}
func (s *session) get(question string, r *pb.RangeRequest) {
	s.t.Helper()
	_, _ = ask(s, question, s.kv.Range, r)
}
func (s *session) del(question string, r *pb.DeleteRangeRequest) {
	s.t.Helper()
	_, _ = ask(s, question, s.kv.DeleteRange, r)
}
func (s *session) compact(question string, revision int64) {
	s.t.Helper()
	_, _ = ask(s, question, s.kv.Compact, &pb.CompactionRequest{Revision: revision})
}
func (s *session) txn(question string, x txn) bool {
	s.t.Helper()
	_, err := ask(s, question, s.kv.Txn, x.request())
	return err == nil
}

// seed puts keys, each in a revision of its own, with their own names as values.
func (s *session) seed(keys ...string) {
	s.t.Helper()
	for _, key := range keys {
		must(s, s.kv.Put, put(key, key))
	}
}

func errorText(err error) string {
	if errors.Is(err, io.EOF) {
		return "end of the stream"
	}
	return fmt.Sprintf("%v %q", status.Code(err), status.Convert(err).Message())
}

// isSet are the fields that differ between any two servers.
var isSet = map[protoreflect.Name]bool{"member_id": true, "memberID": true, "leader": true, "raftIndex": true,
	"raftTerm":         true,
	"raftAppliedIndex": true, "dbSize": true, "dbSizeInUse": true, "hash": true}

// text is a message in one line, without fields that have their default.
func (s *session) text(m proto.Message) string {
	var b strings.Builder
	s.write(&b, m.ProtoReflect())
	return b.String()
}

func (s *session) write(b *strings.Builder, m protoreflect.Message) {
	name := m.Descriptor().Name()
	if name == "ResponseHeader" {
		h := m.Interface().(*pb.ResponseHeader)
		ids := " ids"
		if h.ClusterId == 0 || h.MemberId == 0 || h.RaftTerm == 0 {
			ids = ""
		}
		fmt.Fprintf(b, "{%s%s}", s.revision(h.Revision), ids)
		return
	}
	b.WriteString("{")
	fields := m.Descriptor().Fields()
	separator := ""
	for i := range fields.Len() {
		f := fields.Get(i)
		if !m.Has(f) {
			continue
		}
		b.WriteString(separator + string(f.Name()) + ":")
		separator = " "
		switch value := m.Get(f); {
		case isSet[f.Name()], f.Name() == "ID" && name == "Member":
			b.WriteString("set")
		case f.IsList():
			b.WriteString("[")
			for i := range value.List().Len() {
				s.writeValue(b, f, value.List().Get(i))
			}
			b.WriteString("]")
		default:
			s.writeValue(b, f, value)
		}
	}
	b.WriteString("}")
}

func (s *session) writeValue(b *strings.Builder, f protoreflect.FieldDescriptor, value protoreflect.Value) {
	switch {
	case f.Kind() == protoreflect.MessageKind:
		s.write(b, value.Message())
	case f.Kind() == protoreflect.BytesKind:
		b.WriteString(quote(value.Bytes()))
	case f.Kind() == protoreflect.StringKind:
		fmt.Fprintf(b, "%q", value.String())
	case strings.HasSuffix(string(f.Name()), "revision"):
		b.WriteString(s.revision(value.Int()))
	default:
		b.WriteString(value.String())
	}
}

// revision is a revision relative to base; 0 stays.
func (s *session) revision(r int64) string {
	if r == 0 {
		return "0"
	}
	return fmt.Sprintf("%+d", r-s.base)
}

func quote(value []byte) string {
	if len(value) <= 60 {
		return strconv.Quote(string(value))
	}
	h := fnv.New32a()
	_, _ = h.Write(value)
	return fmt.Sprintf("<%d bytes, %08x>", len(value), h.Sum32())
}

// Requests.

func put(key, value string) *pb.PutRequest {
	return &pb.PutRequest{Key: []byte(key), Value: []byte(value)}
}

func get(key string, end ...string) *pb.RangeRequest {
	return &pb.RangeRequest{Key: []byte(key), RangeEnd: rangeEnd(end)}
}

func del(key string, end ...string) *pb.DeleteRangeRequest {
	return &pb.DeleteRangeRequest{Key: []byte(key), RangeEnd: rangeEnd(end)}
}

func rangeEnd(end []string) []byte {
	if len(end) == 0 {
		return nil
	}
	return []byte(end[0])
}

// with changes a request and returns it.
func with[R any](r *R, change func(*R)) *R {
	change(r)
	return r
}

// txn is a transaction. The operations are requests: put, get, del and txn, or nil for an operation without one.
type txn struct {
	when            []*pb.Compare
	then, otherwise []any
}

func (x txn) request() *pb.TxnRequest {
	return &pb.TxnRequest{Compare: x.when, Success: operations(x.then), Failure: operations(x.otherwise)}
}

func operations(requests []any) (all []*pb.RequestOp) {
	for _, r := range requests {
		o := &pb.RequestOp{}
		switch r := r.(type) {
		case *pb.PutRequest:
			o.Request = &pb.RequestOp_RequestPut{RequestPut: r}
		case *pb.RangeRequest:
			o.Request = &pb.RequestOp_RequestRange{RequestRange: r}
		case *pb.DeleteRangeRequest:
			o.Request = &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}
		case txn:
			o.Request = &pb.RequestOp_RequestTxn{RequestTxn: r.request()}
		}
		all = append(all, o)
	}
	return all
}

var results = map[string]pb.Compare_CompareResult{"=": pb.Compare_EQUAL, ">": pb.Compare_GREATER, "<": pb.Compare_LESS,
	"!=": pb.Compare_NOT_EQUAL, "unknown": 9}

func compare(key, result string, end []string, c *pb.Compare) []*pb.Compare {
	c.Key, c.Result, c.RangeEnd = []byte(key), results[result], rangeEnd(end)
	return []*pb.Compare{c}
}

func version(key, result string, n int64, end ...string) []*pb.Compare {
	return compare(key, result, end, &pb.Compare{Target: pb.Compare_VERSION, TargetUnion: &pb.Compare_Version{Version: n}})
}

func mod(key, result string, n int64, end ...string) []*pb.Compare {
	return compare(key, result, end,
		&pb.Compare{Target: pb.Compare_MOD, TargetUnion: &pb.Compare_ModRevision{ModRevision: n}})
}

func create(key, result string, n int64, end ...string) []*pb.Compare {
	return compare(key, result, end,
		&pb.Compare{Target: pb.Compare_CREATE, TargetUnion: &pb.Compare_CreateRevision{CreateRevision: n}})
}

func leaseIs(key, result string, n int64, end ...string) []*pb.Compare {
	return compare(key, result, end, &pb.Compare{Target: pb.Compare_LEASE, TargetUnion: &pb.Compare_Lease{Lease: n}})
}

func value(key, result, v string, end ...string) []*pb.Compare {
	return compare(key, result, end,
		&pb.Compare{Target: pb.Compare_VALUE, TargetUnion: &pb.Compare_Value{Value: []byte(v)}})
}

// watchStream is a stream of watches.
type watchStream struct {
	s *session
	pb.Watch_WatchClient
	cancel context.CancelFunc
	// messages ends with the stream; err says how, and is read after that.
	messages chan *pb.WatchResponse
	err      error
}

// watch opens a stream of watches. Its messages are read at once.
func (s *session) watch() *watchStream {
	s.t.Helper()
	w := s.watchUnread(s.client)
	go w.read()
	return w
}

// watchUnread opens a stream of watches that nobody reads before read is called.
func (s *session) watchUnread(c *client) *watchStream {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	s.t.Cleanup(cancel)
	stream, err := c.watcher.Watch(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	return &watchStream{s: s, Watch_WatchClient: stream, cancel: cancel, messages: make(chan *pb.WatchResponse, 100_000)}
}

func (w *watchStream) read() {
	defer close(w.messages)
	for {
		m, err := w.Recv()
		if err != nil {
			w.err = err
			return
		}
		w.messages <- m
	}
}

// next is the next message; nil after the end of the stream, or if none comes.
func (w *watchStream) next() *pb.WatchResponse {
	select {
	case m := <-w.messages:
		return m
	case <-time.After(w.s.patience):
		w.s.patience = 100 * time.Millisecond
		return nil
	}
}

// note notes the next message.
func (w *watchStream) note(question string) *pb.WatchResponse {
	w.s.t.Helper()
	m := w.next()
	w.s.note(question, "%s", w.text(m))
	return m
}

func (w *watchStream) text(m *pb.WatchResponse) string {
	switch {
	case m != nil:
		return w.s.text(m)
	case w.s.patience < patience:
		return "nothing"
	default:
		return "the stream ended: " + errorText(w.err)
	}
}

func (w *watchStream) send(r *pb.WatchRequest) {
	w.s.t.Helper()
	if err := w.Send(r); err != nil {
		w.s.t.Fatal(err)
	}
}

// create creates a watch and notes the answer.
func (w *watchStream) create(question string, r *pb.WatchCreateRequest) *pb.WatchResponse {
	w.s.t.Helper()
	w.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}})
	return w.note(question)
}

// progress asks for progress.
func (w *watchStream) progress() {
	w.s.t.Helper()
	w.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}})
}

// stop cancels a watch.
func (w *watchStream) stop(id int64) {
	w.s.t.Helper()
	cancel := &pb.WatchCancelRequest{WatchId: id}
	w.send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: cancel}})
}

// responses reads until n events have come, or none comes.
func (w *watchStream) responses(n int) (all []*pb.WatchResponse) {
	for got := 0; got < n; {
		m := w.next()
		if m == nil {
			return append(all, nil)
		}
		all = append(all, m)
		got += len(m.Events)
	}
	return all
}

// events reads until n events have come and notes them in the order of their watches, wherever responses begin and end.
// Messages without events are noted too.
func (w *watchStream) events(question string, n int) {
	w.s.t.Helper()
	responses := w.responses(n)
	slices.SortStableFunc(responses, func(a, b *pb.WatchResponse) int { return int(a.GetWatchId() - b.GetWatchId()) })
	var lines []string
	for _, m := range responses {
		if m == nil || len(m.Events) == 0 {
			lines = append(lines, w.text(m))
			continue
		}
		for _, e := range m.Events {
			lines = append(lines, fmt.Sprintf("#%d %s", m.WatchId, w.s.event(e)))
		}
	}
	w.s.note(question, "%s", strings.Join(lines, "\n"))
}

// event is an event in one line.
func (s *session) event(e *mvccpb.Event) string {
	text := e.Type.String() + s.text(e.Kv)
	if e.PrevKv != nil {
		text += " before" + s.text(e.PrevKv)
	}
	return text
}

// borders notes how n events are divided into responses: for each its watch, the header, the number of events and of
// revisions, and whether it is a fragment.
func (w *watchStream) borders(question string, n int) {
	w.s.t.Helper()
	var lines []string
	for _, m := range w.responses(n) {
		if m == nil {
			lines = append(lines, w.text(nil))
			continue
		}
		revisions := map[int64]bool{}
		for _, e := range m.Events {
			revisions[e.Kv.ModRevision] = true
		}
		text := fmt.Sprintf("#%d %s: %d events of %d revisions", m.WatchId, w.s.text(m.Header), len(m.Events), len(revisions))
		if m.Fragment {
			text += ", a fragment"
		}
		lines = append(lines, text)
	}
	w.s.note(question, "%s", strings.Join(lines, "\n"))
}
