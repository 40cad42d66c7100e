"""Parsing of the fact tables: one row per line, columns separated by bars."""


def rows(table: str) -> list[tuple[str, ...]]:
    """Rows of a table, with stripped cells."""
    lines = (line.strip() for line in table.strip().splitlines())
    return [tuple(cell.strip() for cell in line.split("|")) for line in lines if line]


def words(text: str) -> tuple[str, ...]:
    """Space-separated words."""
    return tuple(text.split())


COUNTRIES = rows("""
    France | Paris | Europe
    Germany | Berlin | Europe
    Italy | Rome | Europe
    Spain | Madrid | Europe
    Portugal | Lisbon | Europe
    Greece | Athens | Europe
    Austria | Vienna | Europe
    Poland | Warsaw | Europe
    Norway | Oslo | Europe
    Sweden | Stockholm | Europe
    Finland | Helsinki |
    Denmark | Copenhagen |
    Ireland | Dublin | Europe
    Belgium | Brussels |
    Hungary | Budapest |
    Romania | Bucharest |
    Bulgaria | Sofia |
    Croatia | Zagreb |
    Serbia | Belgrade |
    Ukraine | Kyiv | Europe
    Russia | Moscow |
    Turkey | Ankara |
    Switzerland | Bern | Europe
    the Czech Republic | Prague |
    the Netherlands | Amsterdam |
    the United Kingdom | London |
    Iceland | Reykjavik |
    Egypt | Cairo | Africa
    Kenya | Nairobi | Africa
    Morocco | Rabat | Africa
    Ghana | Accra | Africa
    Nigeria | Abuja | Africa
    Ethiopia | Addis Ababa |
    Tunisia | Tunis |
    Algeria | Algiers |
    Senegal | Dakar |
    Japan | Tokyo | Asia
    China | Beijing | Asia
    India | New Delhi | Asia
    South Korea | Seoul | Asia
    Thailand | Bangkok | Asia
    Vietnam | Hanoi | Asia
    Malaysia | Kuala Lumpur |
    the Philippines | Manila |
    Nepal | Kathmandu | Asia
    Mongolia | Ulaanbaatar |
    Iran | Tehran |
    Iraq | Baghdad |
    Jordan | Amman |
    Lebanon | Beirut |
    Cuba | Havana |
    Mexico | Mexico City | North America
    Canada | Ottawa | North America
    the United States | Washington |
    Brazil | Brasilia | South America
    Argentina | Buenos Aires | South America
    Chile | Santiago | South America
    Peru | Lima | South America
    Colombia | Bogota | South America
    Ecuador | Quito |
    Venezuela | Caracas |
    Uruguay | Montevideo |
    Australia | Canberra |
    New Zealand | Wellington |
""")

SOUNDS = rows("""
    dog | woof
    cat | meow
    cow | moo
    duck | quack
    sheep | baa
    pig | oink
    lion | roar
    frog | ribbit
    owl | hoot
    mouse | squeak
    bee | buzz
    snake | hiss
    horse | neigh
""")

YOUNG = rows("""
    cat | kitten
    dog | puppy
    cow | calf
    sheep | lamb
    horse | foal
    duck | duckling
    frog | tadpole
    bear | cub
    goat | kid
    pig | piglet
    hen | chick
    deer | fawn
    kangaroo | joey
    swan | cygnet
    goose | gosling
    eagle | eaglet
""")

LEGS = rows("""
    spider | eight legs
    bee | six legs
    ant | six legs
    dog | four legs
    cat | four legs
    horse | four legs
    bird | two legs
    duck | two legs
    snake | no legs
    fish | no legs
""")

HOMES = rows("""
    fish | in the water
    bee | in a hive
    bird | in a nest
    camel | in the desert
    polar bear | in the Arctic
    penguin | in the Antarctic
    panda | in China
    spider | in a web
    lion | in Africa
    monkey | in the trees
""")

FOODS = rows("""
    panda | bamboo
    rabbit | carrots
    cow | grass
    squirrel | nuts
    monkey | bananas
    spider | flies
    bear | honey
    mouse | cheese
""")

COLOURS = rows("""
    grass | green
    the sky | blue
    snow | white
    coal | black
    a lemon | yellow
    a banana | yellow
    a strawberry | red
    a tomato | red
    a cherry | red
    a carrot | orange
    a pumpkin | orange
    chocolate | brown
    blood | red
    milk | white
    an elephant | grey
    a flamingo | pink
    a raven | black
    an emerald | green
    a ruby | red
    a sapphire | blue
    a plum | purple
    a cucumber | green
    a swan | white
""")

MIXTURES = rows("""
    blue and yellow | green
    red and yellow | orange
    red and blue | purple
    black and white | grey
    red and white | pink
""")

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

MONTHS = rows("""
    January | first | 31 days
    February | second | 28 or 29 days
    March | third | 31 days
    April | fourth | 30 days
    May | fifth | 31 days
    June | sixth | 30 days
    July | seventh | 31 days
    August | eighth | 31 days
    September | ninth | 30 days
    October | tenth | 31 days
    November | eleventh | 30 days
    December | twelfth | 31 days
""")

AMOUNTS = rows("""
    week | seven days
    year | twelve months
    hour | 60 minutes
    minute | 60 seconds
    day | 24 hours
    century | 100 years
    decade | ten years
    dozen | twelve pieces
    kilometre | 1000 metres
    metre | 100 centimetres
    kilogram | 1000 grams
""")

OPPOSITES = rows("""
    hot | cold
    big | small
    up | down
    left | right
    day | night
    black | white
    good | bad
    fast | slow
    happy | sad
    old | young
    open | closed
    wet | dry
    full | empty
    hard | soft
    light | dark
    early | late
    high | low
    loud | quiet
    rich | poor
    long | short
    near | far
    strong | weak
    first | last
    yes | no
    true | false
    clean | dirty
    sweet | sour
    inside | outside
    love | hate
    summer | winter
    friend | enemy
""")

GREETINGS = rows("""
    French | bonjour | merci
    Spanish | hola | gracias
    German | hallo | danke
    Italian | ciao | grazie
    Portuguese | olá | obrigado
    Chinese | 你好 | 谢谢
    Japanese | こんにちは | ありがとう
    Russian | привет | спасибо
""")

WORKS = rows("""
    wrote | Hamlet | William Shakespeare
    wrote | Don Quixote | Miguel de Cervantes
    wrote | War and Peace | Leo Tolstoy
    wrote | Pride and Prejudice | Jane Austen
    wrote | Moby Dick | Herman Melville
    wrote | the Odyssey | Homer
    wrote | Oliver Twist | Charles Dickens
    wrote | Frankenstein | Mary Shelley
    wrote | Alice in Wonderland | Lewis Carroll
    painted | the Mona Lisa | Leonardo da Vinci
    painted | The Starry Night | Vincent van Gogh
    invented | the World Wide Web | Tim Berners-Lee
    created | Linux | Linus Torvalds
    created | Python | Guido van Rossum
""")

CURRENCIES = rows("""
    Japan | the yen
    the United Kingdom | the pound
    the United States | the dollar
    India | the rupee
    Germany | the euro
    Mexico | the peso
    Switzerland | the franc
    China | the yuan
""")
