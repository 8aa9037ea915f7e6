package crd

import (
	"errors"
	"fmt"
	"net/http"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/utils/clock"

	"byre/apiserver/delegation"
	"byre/apiserver/endpoints"
	"byre/sqlstore"
	"byre/watch"
)

func validate(d delegation.Dependencies) error {
	if err := d.Validate(); err != nil {
		return fmt.Errorf("crd: %w", err)
	}
	// Conversion webhooks are found and authenticated to by these.
	if d.ServiceResolver == nil || d.WebhookAuthentication == nil {
		return errors.New("crd: ServiceResolver and WebhookAuthentication are required")
	}
	return nil
}

// Server is a handler of definitions and of what they define.
type Server struct {
	codecs      serializer.CodecFactory
	definitions *endpoints.API
	table       *table
	*follower
}

// errUnresolved is all that a client is told when a definition can't be served.
var errUnresolved = errors.New("error resolving resource")

// New makes a Server; requests for what it does not serve go on to delegate. It
// starts nothing.
func New(d delegation.Dependencies, delegate http.Handler) (*Server, error) {
	if err := validate(d); err != nil {
		return nil, err
	}
	converter, err := conversion.NewCRConverterFactory(d.ServiceResolver, d.WebhookAuthentication)
	if err != nil {
		return nil, fmt.Errorf("crd: conversion webhooks: %w", err)
	}
	own, err := newGroup(d)
	if err != nil {
		return nil, err
	}
	s := &Server{codecs: own.codecs}
	if s.definitions, err = own.api(d, delegate); err != nil {
		return nil, err
	}
	s.table = &table{
		shared: &shared{
			scheme: own.scheme, storage: d.Storage, serving: d.Serving,
			converter: converter, conversions: newConversions(maxConversions, clock.RealClock{}), read: own.source,
		},
		known:  own.known,
		fresh:  own.fresh,
		latest: own.latest,
		seen:   d.Storage.Feed.Revision,
		forget: func(group, plural string) {
			d.Storage.Feed.Forget(watch.Resource{Group: group, Name: plural, Owner: sqlstore.Custom})
		},
		byName: map[string]*definition{},
		gone:   map[schema.GroupResource]bool{},
	}
	if s.follower, err = newFollower(d, s.table); err != nil {
		return nil, err
	}
	s.table.changed = s.mark
	return s, nil
}

// Stores says whether objects of a resource are kept here: definitions, and what
// they define.
func (s *Server) Stores(gr schema.GroupResource) bool {
	return gr == definitions || s.table.get(gr.String()) != nil
}
