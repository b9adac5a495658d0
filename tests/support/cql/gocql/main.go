// Runs CQL statements with gocql and prints what it reads: gocql HOST PORT < statements, one a line. A line that begins
// with SELECT has its rows printed, each as a JSON array of what Go makes of its values.
package main

import (
	"bufio"
	"encoding/json"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gocql/gocql"
)

const patience = 60 * time.Second

func main() {
	port, err := strconv.Atoi(os.Args[2])
	check(err)
	cluster := gocql.NewCluster(os.Args[1])
	cluster.Port, cluster.Timeout, cluster.ConnectTimeout = port, patience, patience
	cluster.Consistency = gocql.One
	session, err := cluster.CreateSession()
	check(err)
	defer session.Close()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		run(session, lines.Text())
	}
	check(lines.Err())
}

func run(session *gocql.Session, statement string) {
	rows := session.Query(statement).Iter()
	for strings.HasPrefix(statement, "SELECT") {
		row, err := rows.RowData()
		check(err)
		if !rows.Scan(row.Values...) {
			break
		}
		check(json.NewEncoder(os.Stdout).Encode(row.Values))
	}
	check(rows.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
