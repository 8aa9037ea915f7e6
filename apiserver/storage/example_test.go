package storage_test

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	apistorage "k8s.io/apiserver/pkg/storage"

	"byre/apiserver/storage"
	"byre/sqlstore"
	"byre/sqlstore/storetest"
	"byre/watch"
)

// A Store is a storage.Interface. GetEncoded returns the same object as bytes.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	driver := storetest.NewModel()
	feed := watch.New(driver, watch.Options{})
	store := sqlstore.New(driver, sqlstore.Options{Publish: feed.Publish})
	var running sync.WaitGroup
	running.Go(func() { _ = store.Run(ctx) })
	running.Go(func() { _ = feed.Run(ctx) })
	defer func() { stop(); running.Wait() }()

	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		fmt.Println(err)
		return
	}
	codecs := serializer.NewCodecFactory(scheme)
	json, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	version := corev1.SchemeGroupVersion
	configMaps := storage.New(storage.Config{
		Store:          store,
		Feed:           feed,
		GroupResource:  corev1.Resource("configmaps"),
		Owner:          sqlstore.BuiltIn,
		ResourcePrefix: "/configmaps",
		Codec:          codecs.CodecForVersions(json.Serializer, codecs.UniversalDeserializer(), version, version),
		StorageVersion: version,
		NewFunc:        func() runtime.Object { return &corev1.ConfigMap{} },
	})

	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "settings"},
		Data: map[string]string{"a": "1"}}
	var created corev1.ConfigMap
	if err := configMaps.Create(ctx, "/configmaps/default/settings", object, &created, 0); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("resourceVersion", created.ResourceVersion)

	encoded, err := configMaps.GetEncoded(ctx, "/configmaps/default/settings", apistorage.GetOptions{},
		configMaps.Stored())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(encoded.AppendJSON(nil, true)))
	// Output:
	// resourceVersion 1
	// {"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"settings","namespace":"default","resourceVersion":"1"},"data":{"a":"1"}}
}
