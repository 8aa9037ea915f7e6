package crd

import (
	"errors"
	"fmt"
	"net/http"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/util/webhook"
	restclient "k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"byre/apiserver/endpoints"
	"byre/sqlstore"
	"byre/watch"
)

// Config is what New needs. All of it is required.
type Config struct {
	endpoints.Common
	// Loopback reaches the whole server as itself.
	Loopback *restclient.Config
	// ServiceResolver and Authentication are how conversion webhooks are found,
	// and by what the server shows itself to them.
	ServiceResolver webhook.ServiceResolver
	Authentication  webhook.AuthenticationInfoResolverWrapper
}

func (c *Config) check() error {
	if err := c.Check(); err != nil {
		return fmt.Errorf("crd: %w", err)
	}
	if c.Loopback == nil || c.ServiceResolver == nil || c.Authentication == nil {
		return errors.New("crd: Loopback, ServiceResolver and Authentication are required")
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

// New makes a Server; requests for what it does not serve go on to next. It
// starts nothing.
func New(c Config, next http.Handler) (*Server, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	converter, err := conversion.NewCRConverterFactory(c.ServiceResolver, c.Authentication)
	if err != nil {
		return nil, fmt.Errorf("crd: conversion webhooks: %w", err)
	}
	own, err := newGroup(c)
	if err != nil {
		return nil, err
	}
	s := &Server{codecs: own.codecs}
	if s.definitions, err = own.api(c, next); err != nil {
		return nil, err
	}
	s.table = &table{
		shared: &shared{
			scheme: own.scheme, storage: c.Storage, serving: c.Serving,
			converter: converter, conversions: newConversions(maxConversions, clock.RealClock{}), read: own.source,
		},
		known:  own.known,
		fresh:  own.fresh,
		latest: own.latest,
		seen:   c.Storage.Feed.Revision,
		forget: func(group, plural string) {
			c.Storage.Feed.Forget(watch.Resource{Group: group, Name: plural, Owner: sqlstore.Custom})
		},
		byName: map[string]*definition{},
		gone:   map[schema.GroupResource]bool{},
	}
	if s.follower, err = newFollower(c, s.table); err != nil {
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
