package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"byre/e2e/servers"
)

// proxy passes calls on to a server and records what was called and how it ended.
type proxy struct {
	url    string
	server *grpc.ClientConn

	mu sync.Mutex
	// calls counts calls by their kind: the method, what its first message is, and the code at its end.
	calls map[string]int
}

// startProxy starts a proxy that ends with the test.
func startProxy(t *testing.T, etcd *servers.Etcd) *proxy {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{url: "http://" + listener.Addr().String(), calls: map[string]int{}}
	p.server, err = grpc.NewClient(strings.TrimPrefix(etcd.URL, "http://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(frames{}),
			grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)))
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.ForceServerCodecV2(frames{}), grpc.UnknownServiceHandler(p.handle),
		grpc.MaxRecvMsgSize(math.MaxInt32))
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := s.Serve(listener); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		s.Stop()
		serving.Wait()
		p.server.Close()
	})
	return p
}

// frames is a codec of messages that stay as they are.
type frames struct{}

type frame struct{ data []byte }

func (frames) Name() string { return "proto" }

func (frames) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.(*frame).data)}, nil
}

func (frames) Unmarshal(data mem.BufferSlice, v any) error {
	v.(*frame).data = data.Materialize()
	return nil
}

func (p *proxy) handle(_ any, down grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(down)
	ctx, cancel := context.WithCancel(down.Context())
	defer cancel()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md)
	}
	up, err := p.server.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	var first sync.Once
	kind := method
	var sending sync.WaitGroup
	sending.Go(func() {
		for {
			var f frame
			err := down.RecvMsg(&f)
			if errors.Is(err, io.EOF) {
				_ = up.CloseSend()
				return
			}
			if err != nil || up.SendMsg(&f) != nil {
				return
			}
			shape := shapeOf(method, f.data)
			first.Do(func() { kind = shape })
			if strings.HasSuffix(method, "/Watch") {
				p.record(shape, codes.OK)
			}
		}
	})
	for err == nil {
		var f frame
		if err = up.RecvMsg(&f); err == nil {
			err = down.SendMsg(&f)
		}
	}
	cancel()
	if errors.Is(err, io.EOF) {
		err = nil
	}
	// The client may still send; its first message was received before the first answer.
	first.Do(func() {})
	if !strings.HasSuffix(method, "/Watch") {
		p.record(kind, status.Code(err))
	}
	return err
}

func (p *proxy) record(kind string, code codes.Code) {
	if code == codes.Canceled || code == codes.Unavailable {
		return // The client or the server stopped.
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls[fmt.Sprintf("%s: %v", kind, code)]++
}

// kinds are the kinds of calls that were recorded.
func (p *proxy) kinds() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.calls))
}

// shapeOf says what a request is, without its keys and revisions.
func shapeOf(method string, data []byte) string {
	_, name, _ := strings.Cut(strings.TrimPrefix(method, "/etcdserverpb."), "/")
	var parts []string
	switch name {
	case "Range", "RangeStream":
		var r pb.RangeRequest
		if proto.Unmarshal(data, &r) == nil {
			parts = append(parts, fmt.Sprintf("end %v, limit %v, revision %v, count_only %v, keys_only %v", len(r.RangeEnd) > 0,
				r.Limit > 0, r.Revision > 0, r.CountOnly, r.KeysOnly))
		}
	case "Txn":
		var r pb.TxnRequest
		if proto.Unmarshal(data, &r) == nil {
			for _, c := range r.Compare {
				parts = append(parts, fmt.Sprintf("if %v %v", c.Target, c.Result))
			}
			for _, branch := range [][]*pb.RequestOp{r.Success, r.Failure} {
				for _, o := range branch {
					parts = append(parts, strings.TrimPrefix(fmt.Sprintf("%T", o.Request), "*etcdserverpb.RequestOp_Request"))
				}
				parts = append(parts, "|")
			}
		}
	case "Watch":
		var r pb.WatchRequest
		if proto.Unmarshal(data, &r) == nil {
			parts = append(parts, strings.TrimPrefix(fmt.Sprintf("%T", r.RequestUnion), "*etcdserverpb.WatchRequest_"))
		}
	}
	return strings.Join(append([]string{name}, parts...), " ")
}
