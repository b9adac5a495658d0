// Reads a change log with ScyllaDB's library for Go and prints its rows: cdcgo HOST PORT KEYSPACE.TABLE COUNT. Each row
// is a JSON object of its columns, as the library gives them; the program ends after COUNT rows.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/gocql/gocql"
	scyllacdc "github.com/scylladb/scylla-cdc-go"
)

const patience = 60 * time.Second

func main() {
	port, err := strconv.Atoi(os.Args[2])
	check(err)
	count, err := strconv.Atoi(os.Args[4])
	check(err)
	cluster := gocql.NewCluster(os.Args[1])
	cluster.Port, cluster.Timeout, cluster.ConnectTimeout = port, patience, patience
	cluster.PoolConfig.HostSelectionPolicy = gocql.TokenAwareHostPolicy(gocql.RoundRobinHostPolicy())
	session, err := cluster.CreateSession()
	check(err)
	defer session.Close()
	reader, err := scyllacdc.NewReader(context.Background(), &scyllacdc.ReaderConfig{
		Session:               session,
		TableNames:            []string{os.Args[3]},
		ChangeConsumerFactory: scyllacdc.MakeChangeConsumerFactoryFromFunc(printer(count)),
		Logger:                log.New(os.Stderr, "", log.Ltime),
		Advanced: scyllacdc.AdvancedReaderConfig{
			ConfidenceWindowSize:   time.Second,
			PostNonEmptyQueryDelay: time.Second,
			PostEmptyQueryDelay:    time.Second,
			QueryTimeWindowSize:    time.Hour,
			ChangeAgeLimit:         time.Hour,
		},
	})
	check(err)
	check(reader.Run(context.Background()))
}

func printer(count int) scyllacdc.ChangeConsumerFunc {
	var lock sync.Mutex
	lines := json.NewEncoder(os.Stdout)
	return func(_ context.Context, _ string, change scyllacdc.Change) error {
		lock.Lock()
		defer lock.Unlock()
		for _, rows := range [][]*scyllacdc.ChangeRow{change.PreImage, change.Delta, change.PostImage} {
			for _, row := range rows {
				check(lines.Encode(values(row)))
				count--
			}
		}
		if count <= 0 {
			os.Exit(0)
		}
		return nil
	}
}

func values(row *scyllacdc.ChangeRow) map[string]any {
	found := map[string]any{"cdc$operation": row.GetOperation()}
	for _, column := range row.Columns() {
		if value, exists := row.GetValue(column.Name); exists && column.Name != "cdc$operation" {
			found[column.Name] = value
		}
	}
	return found
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
