package crd

import (
	"context"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	apistorage "k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/client-go/tools/cache"

	"byre/apiserver/storage"
	"byre/apiserver/storage/encoding"
	"byre/crd/instances"
)

// listWatch lists and watches the stripped definitions for the informer. It reads the store
// and not the API: over HTTP every definition would be decoded as a whole.
//
// Each watch has a goroutine, which Stop joins; the informer calls Stop.
type listWatch struct{ *cache.ListWatch }

// newInformer makes the informer of the definitions.
func (g *group) newInformer(resync time.Duration) cache.SharedIndexInformer {
	reader := &cache.ListWatch{ListWithContextFunc: g.list, WatchFuncWithContext: g.watch}
	return cache.NewSharedIndexInformer(listWatch{reader}, &apiextensionsv1.CustomResourceDefinition{}, resync,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
}

// IsWatchListSemanticsUnSupported makes the reflector call List, which decodes on all
// processors.
func (listWatch) IsWatchListSemanticsUnSupported() bool { return true }

// selectionOf converts the informer's options to the store's. It asks for no pages.
func selectionOf(options metav1.ListOptions) apistorage.ListOptions {
	predicate := apistorage.Everything
	predicate.AllowWatchBookmarks = options.AllowWatchBookmarks
	return apistorage.ListOptions{
		ResourceVersion:      options.ResourceVersion,
		ResourceVersionMatch: options.ResourceVersionMatch,
		Predicate:            predicate,
		Recursive:            true,
	}
}

func (g *group) list(ctx context.Context, options metav1.ListOptions) (apiruntime.Object, error) {
	listed, err := g.store.ListEncoded(ctx, g.store.Prefix(), selectionOf(options), g.store.Stored())
	if err != nil {
		return nil, storeerr.InterpretListError(err, definitions)
	}
	var texts []encoding.Encoded
	for text, err := range listed.Items {
		if err != nil {
			return nil, storeerr.InterpretListError(err, definitions)
		}
		texts = append(texts, text)
	}
	list := &apiextensionsv1.CustomResourceDefinitionList{
		ListMeta: metav1.ListMeta{ResourceVersion: listed.ResourceVersion},
		Items:    make([]apiextensionsv1.CustomResourceDefinition, len(texts)),
	}
	var decoders errgroup.Group
	decoders.SetLimit(runtime.GOMAXPROCS(0))
	for i, text := range texts {
		decoders.Go(func() error {
			crd, err := instances.DecodeStripped(text.Body(), text.ResourceVersion())
			if err != nil {
				return apierrors.NewInternalError(err)
			}
			list.Items[i] = *crd
			return nil
		})
	}
	return list, decoders.Wait()
}

func (g *group) watch(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
	events, err := g.store.WatchEncoded(ctx, g.store.Prefix(), selectionOf(options), g.store.Stored())
	if err != nil {
		return nil, err
	}
	stream, ctx := storage.NewEventStream(ctx)
	go stream.Run(ctx, func(ctx context.Context) error {
		defer events.Close()
		for {
			batch, err := events.Next(ctx)
			if err != nil {
				return err
			}
			for _, event := range batch {
				crd, err := instances.DecodeStripped(event.Object.Body(), event.Object.ResourceVersion())
				if err != nil {
					return apierrors.NewInternalError(err)
				}
				if err := stream.Send(ctx, apiwatch.Event{Type: event.Type, Object: crd}); err != nil {
					return err
				}
			}
		}
	})
	return definitionWatch{stream}, nil
}

// definitionWatch is a watch of the stripped definitions.
type definitionWatch struct{ storage.EventStream }

// Stop implements watch.Interface. It waits for the goroutine.
func (w definitionWatch) Stop() {
	w.EventStream.Stop()
	for range w.ResultChan() { // until it is closed
	}
}
