#!/bin/sh
# go.etcd.io/etcd/server/v3 v3.7.3, KV.RangeStream with a sort target.
#
# Expected: RangeStream answers in several messages what Range answers in one. A request that it can't serve so is
# refused: for an order other than ascending keys it says Unimplemented.
# Seen: a request with the target VALUE and the order NONE, which Range takes for ascending, is not refused. Each message
# is sorted for itself, and the next one goes on after the last key of the one before: keys come twice, others (k00 here)
# never, and no message tells. Clients that sort must use Range.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
export GOFLAGS=-mod=mod GOWORK=off
go mod init example.com/finding >/dev/null 2>&1
cat >main.go <<'GO'
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	config := embed.NewConfig()
	config.Dir, config.LogLevel = os.Args[1], "fatal"
	local := func(name string) []url.URL { return []url.URL{{Scheme: "unix", Host: name}} }
	config.ListenPeerUrls, config.ListenClientUrls = local("peer:1"), local("client:1")
	config.AdvertisePeerUrls, config.AdvertiseClientUrls = config.ListenPeerUrls, config.ListenClientUrls
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	server, err := embed.StartEtcd(config)
	check(err)
	defer server.Close()
	<-server.Server.ReadyNotify()
	conn, err := grpc.NewClient("unix:client:1", grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	kv := pb.NewKVClient(conn)

	// Thirty keys, whose values are in the reverse order.
	for i := range 30 {
		_, err := kv.Put(ctx, &pb.PutRequest{
			Key: fmt.Appendf(nil, "k%02d", i), Value: fmt.Appendf(nil, "%02d", 99-i),
		})
		check(err)
	}
	all := &pb.RangeRequest{Key: []byte("k"), RangeEnd: []byte("l"), SortTarget: pb.RangeRequest_VALUE}
	whole, err := kv.Range(ctx, all)
	check(err)
	fmt.Println("Range:", names(whole))
	stream, err := kv.RangeStream(ctx, all)
	check(err)
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		check(err)
		fmt.Println("RangeStream:", names(part.RangeResponse))
	}
}

func names(r *pb.RangeResponse) string {
	text := fmt.Sprintf("%d keys:", len(r.Kvs))
	for _, kv := range r.Kvs {
		text += " " + string(kv.Key)
	}
	return text
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
GO
go get go.etcd.io/etcd/server/v3@v3.7.3 go.etcd.io/etcd/api/v3@v3.7.3 >/dev/null 2>&1
go run . "$dir/data" >seen
cat seen
cat >want <<'END'
Range: 30 keys: k29 k28 k27 k26 k25 k24 k23 k22 k21 k20 k19 k18 k17 k16 k15 k14 k13 k12 k11 k10 k09 k08 k07 k06 k05 k04 k03 k02 k01 k00
RangeStream: 10 keys: k10 k09 k08 k07 k06 k05 k04 k03 k02 k01
RangeStream: 20 keys: k22 k21 k20 k19 k18 k17 k16 k15 k14 k13 k12 k11 k10 k09 k08 k07 k06 k05 k04 k03
RangeStream: 26 keys: k29 k28 k27 k26 k25 k24 k23 k22 k21 k20 k19 k18 k17 k16 k15 k14 k13 k12 k11 k10 k09 k08 k07 k06 k05 k04
END
cmp seen want
