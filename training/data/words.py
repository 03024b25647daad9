"""Word lists written for this project."""

ANIMALS = """fox bear owl cat dog rabbit mouse horse goat sheep duck frog wolf deer hedgehog otter
beaver squirrel turtle crow swan pony badger mole robin heron seal whale crab bee""".split()
OBJECTS = """lantern key map bell kite drum book clock ladder basket mirror candle hammer violin
telescope umbrella compass feather teapot blanket button ribbon rope wheel brush bottle coin letter
pencil whistle""".split()
PLACES = """river forest mountain village garden harbor castle bridge island meadow library market
cave tower beach valley farm lake mill station""".split()
FOODS = """apple bread cheese pear plum soup honey rice carrot tomato onion cherry lemon peach bean
potato cookie pancake melon grape walnut banana muffin pepper""".split()
COLORS = "red blue green yellow white black brown grey orange purple pink silver".split()
ADJECTIVES = """small brave quiet old clever gentle happy tired curious proud shy kind lazy busy
young tall calm bold""".split()
NAMES = """Anna Ben Clara David Emma Felix Grace Hugo Ida Jonas Karen Leo Maria Nils Olga Paul Rosa
Sam Tina Victor Wanda Yusuf Zoe Amir Bella Carlos Diana Erik Fatima George Hana Ivan Julia Kofi
Lena Marco Nora Omar Petra Ravi Sara Tom Uma Vera Walter Mila Oscar Alice Bruno Sofia""".split()
CITIES = """Lisbon Oslo Paris Rome Berlin Madrid Vienna Prague Dublin Athens Cairo Tokyo Lima Quito
Boston Toronto Sydney Nairobi Mumbai Seoul Helsinki Warsaw Zagreb Geneva Porto Bergen Krakow Turin
Leeds Malmo""".split()
JOBS = """baker teacher nurse farmer painter driver doctor lawyer pilot singer gardener writer cook
carpenter dentist plumber tailor sailor librarian engineer potter clerk""".split()
HOBBIES = """chess tennis painting fishing swimming hiking dancing reading gardening cycling skating
singing knitting sailing running drawing""".split()
PETS = "cat dog parrot rabbit hamster turtle goldfish pony".split()
PET_NAMES = """Pixel Luna Max Coco Milo Ruby Toby Daisy Rex Bella Oreo Misty Simba Pepper Biscuit
Shadow Sunny Waffles""".split()
VERBS = """walk jump play cook paint listen open close help clean call wait talk plant finish start
visit watch answer count""".split()
COMMON = """table chair window door house street school train plane ship water fire stone paper
glass cloud rain snow wind sun moon star night morning evening summer winter spring autumn year
week month hour minute second friend family mother father brother sister child teacher student
doctor music song dance color number letter word sentence story question answer problem idea dream
money shop price road city country king queen hand foot head eye ear nose mouth heart bird fish tree
flower leaf root grass field hill coat shirt shoe hat sock ring box bag cup plate spoon fork knife
kitchen bedroom office engine wheel screen phone camera radio paint brush picture page story movie
game ball team winner race prize gift party cake sugar salt butter milk coffee juice lunch dinner
breakfast kitchen orange planet rocket robot computer program code memory signal energy metal wood
silver gold copper iron paper cotton silk wool leather""".split()
NOUNS = sorted(set(ANIMALS + OBJECTS + PLACES + FOODS + COMMON))
THINGS = """apples books coins pencils eggs stamps cards balls flowers shells cookies tickets
marbles stones keys cups""".split()

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = """January February March April May June July August September October November
December""".split()
MONTH_DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]

CAPITALS = dict(line.split(": ") for line in """France: Paris
Germany: Berlin
Italy: Rome
Spain: Madrid
Portugal: Lisbon
England: London
Ireland: Dublin
Scotland: Edinburgh
Norway: Oslo
Sweden: Stockholm
Finland: Helsinki
Denmark: Copenhagen
Poland: Warsaw
Austria: Vienna
Hungary: Budapest
Greece: Athens
Turkey: Ankara
Egypt: Cairo
Kenya: Nairobi
Japan: Tokyo
China: Beijing
India: New Delhi
Russia: Moscow
Ukraine: Kyiv
Belgium: Brussels
Iceland: Reykjavik
Canada: Ottawa
Mexico: Mexico City
Cuba: Havana
Peru: Lima
Chile: Santiago
Argentina: Buenos Aires
Brazil: Brasilia
Colombia: Bogota
Ecuador: Quito
Australia: Canberra
New Zealand: Wellington
Thailand: Bangkok
Vietnam: Hanoi
South Korea: Seoul
Iran: Tehran
Iraq: Baghdad
Croatia: Zagreb
Serbia: Belgrade
Bulgaria: Sofia
Romania: Bucharest
Morocco: Rabat
Ghana: Accra
the Netherlands: Amsterdam
the United States: Washington""".splitlines())
OPPOSITES = dict(pair.split("/") for pair in """hot/cold big/small fast/slow high/low old/new open/closed
up/down left/right day/night happy/sad hard/soft light/dark long/short rich/poor strong/weak wet/dry
young/old early/late empty/full clean/dirty near/far loud/quiet thick/thin true/false win/lose
push/pull buy/sell start/stop first/last above/below inside/outside sweet/sour smooth/rough
deep/shallow wide/narrow sharp/blunt easy/difficult cheap/expensive brave/afraid always/never
love/hate day/night morning/evening summer/winter black/white in/out yes/no good/bad heavy/light
tall/short""".split())
PLURALS = dict(pair.split("/") for pair in """child/children mouse/mice foot/feet tooth/teeth
goose/geese man/men woman/women leaf/leaves knife/knives wolf/wolves city/cities story/stories
baby/babies box/boxes bus/buses fish/fish sheep/sheep deer/deer person/people ox/oxen potato/potatoes
tomato/tomatoes dish/dishes watch/watches life/lives wife/wives shelf/shelves party/parties
berry/berries brush/brushes""".split())
PAST = dict(pair.split("/") for pair in """go/went eat/ate see/saw run/ran take/took give/gave
come/came write/wrote read/read speak/spoke sing/sang swim/swam drink/drank drive/drove fly/flew
find/found make/made think/thought buy/bought bring/brought catch/caught teach/taught sleep/slept
keep/kept feel/felt leave/left lose/lost meet/met sit/sat stand/stood tell/told win/won begin/began
break/broke choose/chose fall/fell forget/forgot get/got grow/grew know/knew ride/rode rise/rose
throw/threw wear/wore build/built send/sent spend/spent say/said hear/heard hold/held""".split())
PAST.update({verb: verb + ("d" if verb.endswith("e") else "ed") for verb in VERBS})
BABIES = dict(pair.split("/") for pair in """cat/kitten dog/puppy cow/calf horse/foal sheep/lamb
goat/kid duck/duckling swan/cygnet bear/cub lion/cub frog/tadpole pig/piglet hen/chick deer/fawn
kangaroo/joey goose/gosling owl/owlet fox/cub""".split())
SOUNDS = dict(pair.split("/") for pair in """cat/meow dog/woof cow/moo sheep/baa duck/quack pig/oink
horse/neigh frog/ribbit owl/hoot bee/buzz snake/hiss lion/roar mouse/squeak rooster/cock-a-doodle-doo
crow/caw wolf/howl""".split())


def with_article(word: str) -> str:
    return ("an " if word[0] in "aeiou" else "a ") + word
