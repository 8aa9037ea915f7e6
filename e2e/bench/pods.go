package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
)

// createKinds are the ways to create Pods; they alternate.
var createKinds = []struct {
	name, mediaType string
	by              user
}{
	{"JSON", jsonType, admin},
	{"protobuf", protobufType, admin},
	{"protobuf", protobufType, ordinary},
}

// fillSteps is how many times each kind of create has its turn.
const fillSteps = 4

// fill creates all Pods, and measures at some numbers of Pods how the server behaves with
// that many.
func (b *bench) fill() []phase {
	var phases []phase
	chunks := fillSteps * len(createKinds)
	for i := range chunks {
		phases = append(phases, b.createPodsUpTo(b.Pods*(i+1)/chunks, i%len(createKinds)))
		if slices.Contains([]int{1, chunks / 4, chunks / 2, chunks}, i+1) {
			phases = append(phases, b.growth(b.Pods*(i+1)/chunks))
		}
	}
	return phases
}

func (b *bench) createPodsUpTo(most, kind int) phase {
	k := createKinds[kind]
	name := fmt.Sprintf("create Pod, %s, %d clients%s", k.name, clients, k.by.suffix)
	return phase{name: name, isSetup: true, runsOnEmpty: true, run: func(ctx context.Context, t *target) error {
		first := t.pods
		bodies := make([][]byte, most-first)
		for i := range bodies {
			body, err := encode(b.pod(first+i), k.mediaType)
			if err != nil {
				return err
			}
			bodies[i] = body
		}
		done, err := b.sendLoad(ctx, t, name, closedLoop{clients: clients, first: first, requests: len(bodies)},
			func(ctx context.Context, _, n int) error {
				_, err := k.by.client(t).send(ctx, request{
					method: http.MethodPost, path: "/api/v1/namespaces/" + namespaceName(n) + "/pods",
					contentType: k.mediaType, accept: k.mediaType, body: bodies[n-first], want: http.StatusCreated,
				})
				return err
			})
		t.pods += done.requests
		b.plot("create Pod, "+fmt.Sprint(clients)+" clients", "/s", t.name, t.pods, done.perSecond())
		return err
	}}
}

// patchKinds are the ways to patch the status of a Pod.
var patchKinds = []struct {
	name, contentType string
	body              func(n int, message string) []byte
	by                user
}{
	{"merge", mergePatchType, mergePatch, admin},
	{"strategic", strategicPatchType, strategicPatch, admin},
	{"strategic", strategicPatchType, strategicPatch, ordinary},
	{"merge", mergePatchType, mergePatch, admin},
}

// changeEverything patches the status of all Pods and then lists them in a representation
// that no client has read since.
func (b *bench) changeEverything() []phase {
	var phases []phase
	for i, f := range []representation{asJSON, asProtobuf, asTable, asMetadataProtobuf} {
		name := "first list of all Pods after a change of everything, " + f.name
		phases = append(phases, b.patchPods(i, 0), b.patchPods(i, 1),
			phase{name: name, run: func(ctx context.Context, t *target) error {
				return b.measureList(ctx, t, name, request{accept: f.accept, path: podsPath("", "")}, 1)
			}})
	}
	return phases
}

// patchPods patches the Pods of one half.
func (b *bench) patchPods(kind, half int) phase {
	k := patchKinds[kind]
	name := fmt.Sprintf("patch Pod status, %s, %d clients%s", k.name, clients, k.by.suffix)
	return phase{name: name, runsOnEmpty: true, run: func(ctx context.Context, t *target) error {
		l := closedLoop{clients: clients, first: half * b.Pods / 2, requests: b.Pods / 2}
		t.patches++
		message := fmt.Sprintf("patch %d", t.patches)
		_, err := b.sendLoad(ctx, t, name, l, func(ctx context.Context, _, n int) error {
			_, err := k.by.client(t).send(ctx,
				request{method: http.MethodPatch, path: podPath(n) + "/status", contentType: k.contentType,
					body: k.body(n, message)})
			return err
		})
		return err
	}}
}
